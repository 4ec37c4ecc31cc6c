import { Multiplexer } from "../multiplexer/multiplexer.js";
import { Link } from "./link.js";

/** The link to a Multiplexer of the page's own. */
export class LocalLink extends Link {
  #multiplexer;
  #port = { post: (message) => queueMicrotask(() => this.deliver(message)) };

  /** @param {{ WebSocket?: Function, EventSource?: Function }} implementations */
  constructor(implementations) {
    super();
    this.#multiplexer = new Multiplexer(implementations);
    this.markUp();
  }

  join() {
    this.markUp();
  }

  leave() {
    this.markDown();
    this.#multiplexer.close();
  }

  send(message) {
    this.#multiplexer.receive(this.#port, null, message);
  }
}
