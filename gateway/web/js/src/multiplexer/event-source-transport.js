import { drawBackoff } from "../backoff.js";
import { GROUPED_EVENT_TYPES } from "../grouped-events.js";
import { fetchAnswer, getRefusal } from "./diagnosis.js";

const EVENT_TYPES = [
  "message", "begin", "ready", "position", "gap", "delete", "snapshot-end", "challenge", "end",
  "error", ...Object.keys(GROUPED_EVENT_TYPES),
];
const CLOSED = 2; // EventSource.readyState: it does not reconnect by itself
const FIRST_EVENT_TIMEOUT_MS = 15_000; // then nothing comes through, it seems
const HEARTBEAT_DELAY_MS = 5_000; // by which a heartbeat may be late

/** An EventSource for one subscription. */
export class EventSourceTransport {
  #multiplexer;
  #subscription;
  #source = null;
  #hasOpened = false; // this source
  #timer = null;
  #firstEventTimer = null;
  #silenceTimer = null; // from the first begin of this source on
  #heartbeatMs = 0; // how often the gateway sends one, if it says so
  #receivedAt = 0; // ms since 1970

  /**
   * @param {import("./multiplexer.js").Multiplexer} multiplexer
   * @param {import("./subscription.js").Subscription} subscription
   */
  constructor(multiplexer, subscription) {
    this.#multiplexer = multiplexer;
    this.#subscription = subscription;
  }

  subscribe() {
    this.#clearTimers();
    const { request, position } = this.#subscription;
    const { base, path, from, filter, fields, credentials } = request;
    const url = new URL(base + path);
    const start = position ? { lastEventId: position } : { from };
    const query = { ...start, filter: filter && JSON.stringify(filter), fields: fields?.join() };
    for (const [name, value] of Object.entries(query)) if (value) url.searchParams.set(name, value);
    const options = { withCredentials: Boolean(credentials) };
    const source = (this.#source = new this.#multiplexer.EventSource(url.href, options));
    this.#subscription.isAtPosition = true;
    this.#hasOpened = false;
    source.onopen = () => (this.#hasOpened = true);
    // The source is kept: a gateway may also wait for Kafka, and then begins late.
    this.#firstEventTimer = setTimeout(
      () => this.#multiplexer.explainFailure(this.#subscription, { isSilent: true }),
      FIRST_EVENT_TIMEOUT_MS,
    );
    for (const type of EVENT_TYPES) {
      source.addEventListener(type, (event) => {
        if (source !== this.#source) return;
        clearTimeout(this.#firstEventTimer);
        this.#receivedAt = Date.now();
        // The gateway's event `error` has data; the EventSource's own has none.
        if (event.data !== undefined) this.#handleEvent(event);
        else if (type === "error") this.#handleFailure(source, url.href, credentials);
      });
    }
  }

  unsubscribe() {
    this.#clearTimers();
    this.#source?.close();
    this.#source = null;
  }

  /** An EventSource reconnects by itself, with the server's `retry:`, unless it was closed. */
  resubscribe(subscription, reason, delayMs) {
    if (this.#source?.readyState !== CLOSED) return;
    this.#timer = setTimeout(() => this.subscribe(), delayMs);
  }

  #handleEvent({ type, data, lastEventId }) {
    let content = data;
    try {
      content = JSON.parse(data.replace(/^\ufeff/, ""));
    } catch { /* a record of format `value` that is text */ }
    if (type === "message" && this.#subscription.request.texts) {
      // JSON that is not a text is given as it was written.
      content = content === data ? JSON.stringify(data) : data.replace(/^\ufeff/, "");
    }
    // The browser gives an event without an id that of the event before.
    const position = lastEventId === this.#subscription.position ? undefined : lastEventId;
    if (type === "challenge") return this.#renew(content.url);
    if (type === "begin") {
      this.#heartbeatMs = 1_000 * (content.heartbeat ?? 0);
      clearTimeout(this.#silenceTimer);
      this.#checkSilence();
    }
    let message = { ...content, type, position };
    if (type === "message") message = { type: "records", records: [content], position };
    else if (type === "delete") message = { type, record: content, position };
    this.#multiplexer.handleMessage(this.#subscription, message);
  }

  /** Renew the stream with the cookies that the browser has now: an EventSource has no token. */
  #renew(path) {
    const { base, credentials } = this.#subscription.request;
    const absolute = new URL(path, base).href;
    // A proxy may have taken the prefix of `base` off before the gateway built the path.
    const url = absolute.startsWith(`${base}/`) ? absolute : base + path;
    const answer = fetch(url, {
      method: "POST",
      credentials: credentials ? "include" : "same-origin",
    });
    answer.catch(() => {}); // then the stream ends, and reconnects
  }

  async #handleFailure(source, url, credentials) {
    const subscription = this.#subscription;
    this.#multiplexer.handleDisconnect(subscription);
    if (source.readyState !== CLOSED && this.#hasOpened) {
      return this.#multiplexer.explainFailure(subscription);
    }
    source.close();
    const answer = await fetchAnswer(url, { credentials });
    if (source !== this.#source) return;
    const error = getRefusal(answer, subscription.position);
    if (error) return this.#multiplexer.handleMessage(subscription, { type: "error", ...error });
    this.#multiplexer.explainFailure(subscription, { answer });
    this.#timer = setTimeout(() => {
      if (this.#hasOpened || !this.#multiplexer.switchTransport(subscription, false)) {
        this.subscribe();
      }
    }, drawBackoff(++subscription.attempts));
  }

  /** Open another source if this one is silent: it may be dead, which TCP takes long to notice. */
  #checkSilence() {
    if (!this.#heartbeatMs) return;
    const leftMs = this.#receivedAt + 2 * this.#heartbeatMs + HEARTBEAT_DELAY_MS - Date.now();
    if (leftMs > 0) {
      this.#silenceTimer = setTimeout(() => this.#checkSilence(), leftMs);
      return;
    }
    this.#source.close();
    this.#multiplexer.handleDisconnect(this.#subscription);
    this.subscribe();
  }

  #clearTimers() {
    clearTimeout(this.#timer);
    clearTimeout(this.#firstEventTimer);
    clearTimeout(this.#silenceTimer);
  }
}
