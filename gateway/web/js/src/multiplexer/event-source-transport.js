import { drawBackoff } from "../backoff.js";
import { GROUPED_EVENT_TYPES, requestGroupedEvents } from "../grouped-events.js";

const EVENT_TYPES = [
  "message", "begin", "ready", "position", "gap", "delete", "snapshot-end", "challenge", "end",
  "error", ...Object.keys(GROUPED_EVENT_TYPES),
];
const CLOSED = 2; // EventSource.readyState: it does not reconnect by itself
const TRANSIENT_STATUSES = [408, 425, 429]; // of 4xx; all of 5xx are

/** An EventSource for one subscription. */
export class EventSourceTransport {
  #multiplexer;
  #subscription;
  #source = null;
  #hasOpened = false; // this source
  #timer = null;

  /**
   * @param {import("./multiplexer.js").Multiplexer} multiplexer
   * @param {import("./subscription.js").Subscription} subscription
   */
  constructor(multiplexer, subscription) {
    this.#multiplexer = multiplexer;
    this.#subscription = subscription;
  }

  subscribe() {
    clearTimeout(this.#timer);
    const { request, position } = this.#subscription;
    const { base, path, from, filter, fields, credentials } = request;
    const url = new URL(base + requestGroupedEvents(path));
    const start = position ? { lastEventId: position } : { from };
    const query = { ...start, filter: filter && JSON.stringify(filter), fields: fields?.join() };
    for (const [name, value] of Object.entries(query)) if (value) url.searchParams.set(name, value);
    const options = { withCredentials: Boolean(credentials) };
    const source = (this.#source = new this.#multiplexer.EventSource(url.href, options));
    this.#subscription.isAtPosition = true;
    this.#hasOpened = false;
    source.onopen = () => (this.#hasOpened = true);
    for (const type of EVENT_TYPES) {
      source.addEventListener(type, (event) => {
        if (source !== this.#source) return;
        // The gateway's event `error` has data; the EventSource's own has none.
        if (event.data !== undefined) this.#handleEvent(event);
        else if (type === "error") this.#handleFailure(source, url.href, credentials);
      });
    }
  }

  unsubscribe() {
    clearTimeout(this.#timer);
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
      content = JSON.parse(data);
    } catch { /* a record of format `value` that is text */ }
    // The browser gives an event without an id that of the event before.
    const position = lastEventId === this.#subscription.position ? undefined : lastEventId;
    if (type === "challenge") return this.#renew(content.url);
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
    if (source.readyState !== CLOSED && this.#hasOpened) return;
    source.close();
    const error = await fetchRefusal(url, credentials, subscription.position);
    if (source !== this.#source) return;
    if (error) return this.#multiplexer.handleMessage(subscription, { type: "error", ...error });
    this.#timer = setTimeout(() => {
      if (this.#hasOpened || !this.#multiplexer.switchTransport(subscription, false)) {
        this.subscribe();
      }
    }, drawBackoff(++subscription.attempts));
  }
}

/**
 * Return why an EventSource was refused, which it does not tell, by the same request once more.
 *
 * @param {string} url
 * @param {boolean | undefined} credentials
 * @param {string} position
 * @returns {Promise<{ code: string, message: string, status: number } | null>} null if the request
 *   is to be tried again.
 */
async function fetchRefusal(url, credentials, position) {
  const control = new AbortController();
  try {
    const answer = await fetch(url, {
      headers: { Accept: "text/event-stream" },
      credentials: credentials ? "include" : "same-origin",
      signal: control.signal,
    });
    const { status } = answer;
    if (status < 400 || status >= 500 || TRANSIENT_STATUSES.includes(status)) return null;
    const { detail = `HTTP status ${status}`, topic } = await answer.json().catch(() => ({}));
    let code = "bad-request";
    if (status === 401 || status === 403) code = "forbidden";
    else if (status === 404) code = topic ? "unknown-topic" : "unknown-path";
    else if (status === 400 && position) code = "position-refused";
    return { code, message: detail, status };
  } catch {
    return null;
  } finally {
    control.abort();
  }
}
