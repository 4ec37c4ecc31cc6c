import { drawBackoff } from "../backoff.js";
import { holdLock, whenReleased } from "../locks.js";
import { PROTOCOL_NAME } from "../protocol.js";
import { createUuid } from "../uuid.js";
import { Link } from "./link.js";

const REJOIN_ATTEMPT = 4; // a worker that cannot be started again is retried within 8 s

/** The link to the Multiplexer in the SharedWorker of the origin. */
export class WorkerLink extends Link {
  #script;
  #port = null;

  /** @param {string} script The URL of gateway.js. */
  constructor(script) {
    super();
    this.#script = script;
  }

  /**
   * Start the worker, or connect to the one that runs.
   *
   * @param {number} [timeoutMs] Without it, wait as long as it takes.
   * @returns {Promise<this>} Resolves when the worker has answered; rejects if there is none, or
   *   if it has not answered in time.
   */
  async join(timeoutMs) {
    const tab = `${PROTOCOL_NAME} tab ${createUuid()}`;
    await holdLock(tab);
    const worker = new SharedWorker(this.#script, { type: "module", name: PROTOCOL_NAME });
    const port = (this.#port = worker.port);
    await new Promise((resolve, reject) => {
      const fail = (why) => (port.close(), reject(new Error(`the shared worker ${why}`)));
      worker.onerror = () => fail(`cannot be loaded from ${this.#script}`);
      if (timeoutMs) setTimeout(() => this.isUp || fail("does not answer"), timeoutMs);
      port.onmessage = ({ data }) => {
        if (!data.hello) return this.deliver(data);
        whenReleased(data.hello, () => this.#rejoin(port));
        resolve();
      };
      port.postMessage({ hello: tab });
    });
    this.markUp();
    return this;
  }

  leave() {
    this.send({ type: "bye" });
    this.#port = null;
    this.markDown();
  }

  send(message) {
    if (this.isUp) this.#port.postMessage(message);
  }

  /** Join the next worker after the one at this port has ended. */
  #rejoin(port) {
    if (port !== this.#port) return;
    this.markDown();
    const retry = () => setTimeout(() => this.#rejoin(this.#port), drawBackoff(REJOIN_ATTEMPT));
    this.join().catch(retry);
  }
}
