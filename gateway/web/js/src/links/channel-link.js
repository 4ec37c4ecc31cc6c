import { holdLock } from "../locks.js";
import { Multiplexer } from "../multiplexer/multiplexer.js";
import { ANSWER_TIMEOUT_MS, PROTOCOL_NAME } from "../protocol.js";
import { createUuid } from "../uuid.js";
import { Link } from "./link.js";

/**
 * The link to the Multiplexer of the leading tab, perhaps this one.
 *
 * The tab that holds the lock "leader" leads. All tabs speak on one BroadcastChannel.
 */
export class ChannelLink extends Link {
  #channel = new BroadcastChannel(PROTOCOL_NAME);
  #tab = ""; // the name of this tab's lock; "" while the page is left
  #leader = ""; // the name of the leading tab's lock
  #multiplexer = null; // while this tab leads
  #candidacy = null; // aborts the wait for the leader's lock
  #resign = null; // releases the leader's lock
  #askedAt = 0; // ms since 1970: a question to the leader that is not answered
  #localPort = { post: (message) => queueMicrotask(() => this.deliver(message)) };
  #channelPort = { post: (message) => this.#channel.postMessage({ from: this.#tab, ...message }) };

  constructor() {
    super();
    this.#channel.onmessage = ({ data }) => this.#handleMessage(data);
    setInterval(() => this.#checkLeader(), ANSWER_TIMEOUT_MS / 4);
  }

  async join() {
    this.#tab = `${PROTOCOL_NAME} tab ${createUuid()}`;
    this.#candidacy = new AbortController();
    await holdLock(this.#tab);
    this.#requestLeadership();
    return this;
  }

  leave() {
    this.send({ type: "bye" });
    this.#tab = "";
    this.#candidacy.abort();
    this.#resign?.();
    this.#stepDown();
  }

  send(message) {
    if (this.#multiplexer) this.#multiplexer.receive(this.#localPort, null, message);
    else if (this.#leader) {
      this.#channel.postMessage({ for: this.#leader, tab: this.#tab, message });
    }
  }

  /**
   * Lead as soon as no other tab does, and ask which one leads now.
   *
   * @param {boolean} [steal] Lead at once, in place of the tab that leads.
   */
  #requestLeadership(steal = false) {
    const { signal } = this.#candidacy;
    const options = steal ? { steal } : { signal };
    navigator.locks.request(`${PROTOCOL_NAME} leader`, options, () => this.#lead()).catch(() => {
      if (signal.aborted) return;
      this.#stepDown(); // another tab stole the lock, because this one had not answered
      this.#requestLeadership();
    });
    if (!steal) this.#channel.postMessage({ who: true });
  }

  /** Return a promise that keeps the leader's lock until it resolves. */
  #lead() {
    this.#multiplexer = new Multiplexer();
    this.#leader = this.#tab;
    this.#channel.postMessage({ leader: this.#tab });
    this.markUp();
    return new Promise((resolve) => (this.#resign = resolve));
  }

  #stepDown() {
    this.#multiplexer?.close();
    this.#multiplexer = this.#resign = null;
    this.#leader = "";
    this.markDown();
  }

  #handleMessage({ who, leader, from, to, message, tab, ...rest }) {
    if (who && this.#multiplexer) this.#channel.postMessage({ leader: this.#tab });
    else if (leader) this.#follow(leader);
    else if (to && from === this.#leader) this.deliver({ to, message });
    else if (tab && rest.for === this.#tab) {
      this.#multiplexer?.receive(this.#channelPort, tab, message);
    }
  }

  #follow(leader) {
    this.#askedAt = 0;
    if (this.#multiplexer || !this.#tab || leader === this.#leader) return;
    this.#leader = leader;
    this.markUp();
  }

  /**
   * Ask the leader whether it is alive, and replace it if it does not answer.
   *
   * A browser may freeze a hidden tab that holds the lock. A visible tab takes the lock away then.
   * The leader answers without a timer, because a hidden tab's timers run once a minute.
   */
  #checkLeader() {
    if (this.#multiplexer || !this.#tab) return;
    if (document.visibilityState !== "visible") this.#askedAt = 0;
    else if (!this.#askedAt) this.#askedAt = Date.now();
    else if (Date.now() - this.#askedAt > ANSWER_TIMEOUT_MS) {
      this.#askedAt = 0;
      return this.#requestLeadership(true);
    }
    this.#channel.postMessage({ who: true });
  }
}
