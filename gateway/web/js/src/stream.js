import { resolveAddress } from "./address.js";
import { drawBackoff } from "./backoff.js";
import { GROUPED_EVENT_TYPES, splitGroupedEvent } from "./grouped-events.js";
import { openLink } from "./links/open-link.js";
import { StreamError } from "./stream-error.js";
import { createUuid } from "./uuid.js";

const TRANSPORTS = ["auto", "eventsource", "websocket"];
const ITERATED_TYPES = new Set(["record", "delete", "gap", "snapshot"]);
const SAVE_INTERVAL_MS = 250;

/**
 * Return a new Stream, connected.
 *
 * @param {string} path
 * @param {object} [options]
 */
export function connect(path, options) {
  return new Stream(path, options).connect();
}

/** The servers that the console of this page was warned of, until a stream of them begins. */
const warnedServers = new Set();

const nameOf = ({ topic, partition }) => `${topic}-${partition}`;

/** Call a page's callback. An exception is reported as the page's, and does not end the stream. */
function callSafely(callback) {
  try {
    return callback();
  } catch (error) {
    if (globalThis.reportError) reportError(error);
    else setTimeout(() => { throw error; });
  }
}

/**
 * One stream of records. Its options, callbacks and events are described in gateway.d.ts.
 *
 * Messages go through a queue to the page: to its callbacks and listeners, or at the pace of its
 * async iterator. `position` moves when a message has been delivered, never when it arrives.
 */
export class Stream extends EventTarget {
  #options;
  #request; // what to subscribe to
  #link = null;
  #linkPromise = null; // of `openLink`
  #state = "closed";
  #attempt = 0; // counts subscriptions: messages for an earlier one are dropped
  #receivedPosition = null; // after the newest message; `position` is after the newest delivered
  #queue = []; // messages that have not been delivered: { type, payload, position }
  #isDelivering = false;
  #iteration = null; // of the async iterator: { wake } while it waits
  #error = null; // why the stream closed
  #troubleReason = null; // why the stream does not begin, as the page was told
  #failing = new Set(); // partitions that cannot be read for now
  #usedCredit = 0; // records delivered since credit was last returned to the gateway
  #writes = new Map(); // id -> { message, resolve, reject }: not answered
  #listenedTypes = new Set();
  #saveTimer = null;

  constructor(path, options = {}) {
    super();
    const { from, filter, fields, credit, credentials, token, transport = "auto", parse } = options;
    if (!TRANSPORTS.includes(transport)) {
      throw new TypeError(`transport ${transport} is none of ${TRANSPORTS.join(", ")}`);
    }
    if (transport === "eventsource" && (token || credit !== undefined)) {
      throw new TypeError("an EventSource takes neither token nor credit; use another transport");
    }
    this.id = createUuid();
    this.position = options.position ?? null;
    this.#options = options;
    const view = { ...resolveAddress(path, options.base), filter, fields };
    const texts = Boolean(parse);
    this.#request = { ...view, from, credit, credentials, transport, texts, token: Boolean(token) };
  }

  /** "connecting", "live", "stale", "reconnecting" or "closed". */
  get state() {
    return this.#state;
  }

  /** Start the stream, or after `close` continue from its position. */
  connect() {
    if (this.#state !== "closed") return this;
    this.#error = null;
    this.#setState("connecting");
    this.#start(++this.#attempt);
    return this;
  }

  /** End the stream. It keeps its position. */
  close() {
    if (this.#state !== "closed") this.#finish({});
  }

  /** Change the filter, the fields or the path. No record that matches both views is lost. */
  change({ path, ...view }) {
    Object.assign(this.#request, view, path && resolveAddress(path, this.#request.base));
    const { path: newPath, filter, fields } = this.#request;
    this.#send({ type: "change", attempt: this.#attempt, view: { path: newPath, filter, fields } });
  }

  /**
   * Write a record, where the route allows it.
   *
   * The write is repeated after a cut until it is answered; its idempotency key makes Kafka get it
   * once.
   *
   * @returns {Promise<object>} The record's place in Kafka.
   */
  produce(record) {
    const message = { idempotencyKey: createUuid(), ...record, id: createUuid() };
    return new Promise((resolve, reject) => {
      this.#writes.set(message.id, { message, resolve, reject });
      // A new link sends all writes when it comes up.
      this.#attach().then((isNewLink) => isNewLink || this.#sendWrite(message));
    });
  }

  /** Iterate over all records, deletes, gaps and snapshots. Leaving the loop closes the stream. */
  [Symbol.asyncIterator]() {
    this.#iteration ??= {};
    this.connect();
    const end = () => {
      this.#iteration = null;
      this.close();
      return Promise.resolve({ done: true, value: undefined });
    };
    return { next: () => this.#next(), return: end };
  }

  addEventListener(type, ...rest) {
    this.#listenedTypes.add(type);
    super.addEventListener(type, ...rest);
  }

  async #start(attempt) {
    try {
      this.position ??= (await this.#options.store?.load()) ?? null;
    } catch (error) {
      this.#emit("error", error);
    }
    if (attempt !== this.#attempt) return;
    // Messages left from before `close` are delivered first; what follows comes after them.
    if (!this.#queue.length) this.#receivedPosition = this.position;
    this.#deliverQueue();
    const isNewLink = await this.#attach();
    if (!isNewLink && attempt === this.#attempt) this.#sendOpen();
  }

  /**
   * Attach to a link.
   *
   * @returns {Promise<boolean>} False if the stream was attached already. True also if there is
   *   no link to be had: then the stream has been closed. A new link calls `onUp` by itself.
   */
  async #attach() {
    if (this.#link) return false;
    try {
      this.#linkPromise ??= openLink(this.#options);
      const link = await this.#linkPromise;
      if (this.#link) return false;
      this.#link = link;
    } catch (error) {
      this.#linkPromise = null;
      for (const { reject } of this.#writes.values()) reject(error);
      this.#writes.clear();
      if (this.#state !== "closed") this.#finish({ error });
      return true;
    }
    this.#link.attach(this.id, {
      onUp: () => this.#sendAll(),
      onDown: () => this.#state === "closed" || this.#setState("reconnecting"),
      onMessage: (message, attempt) => this.#receive(message, attempt),
      onPageHide: () => this.#savePosition(),
    });
    return true;
  }

  #detachIfIdle() {
    if (this.#state !== "closed" || this.#writes.size) return;
    this.#link?.detach(this.id);
    this.#link = this.#linkPromise = null;
  }

  /** Tell a new Multiplexer all that it must know of this stream. */
  #sendAll() {
    for (const { message } of this.#writes.values()) this.#sendWrite(message);
    if (this.#state !== "closed") this.#sendOpen();
  }

  async #sendOpen() {
    const attempt = ++this.#attempt;
    const jwt = await this.#getToken();
    if (attempt !== this.#attempt) return;
    const { credit, ...request } = this.#request;
    if (credit !== undefined) {
      const waiting = this.#queue.filter(({ type }) => type === "record" || type === "delete");
      request.credit = Math.max(0, credit - waiting.length);
      this.#usedCredit = 0;
    }
    this.#send({ type: "open", attempt, request, position: this.#receivedPosition, jwt });
  }

  async #sendWrite(message) {
    const jwt = await this.#getToken();
    const { base, path } = this.#request;
    this.#send({ type: "produce", base, message: { path, ...message }, jwt });
  }

  #send(message) {
    this.#link?.send({ ...message, stream: this.id });
  }

  /** Ask the page for a token, again and again until it has one: it may be offline. */
  async #getToken() {
    for (let failures = 0; this.#options.token; failures++) {
      try {
        return await this.#options.token();
      } catch (error) {
        this.#emit("error", error);
        await new Promise((resolve) => setTimeout(resolve, drawBackoff(failures)));
        if (this.#state === "closed" && !this.#writes.size) break;
      }
    }
    return undefined;
  }

  async #renewToken() {
    this.#send({ type: "token", jwt: await this.#getToken() });
  }

  #receive({ type, position, ...content }, attempt) {
    if (type === "answer") return this.#settleWrite(content);
    if (type === "token") return this.#renewToken();
    // A stream that only writes has no subscription, and no attempt.
    if (type === "trouble" && this.#state === "closed") {
      return this.#writes.size ? this.#reportTrouble(content) : undefined;
    }
    if (attempt !== this.#attempt) return;
    if (position !== undefined) this.#receivedPosition = position || null;
    if (type === "records") this.#enqueue("record", this.#parse(content.records), position);
    else if (type === "delete") this.#enqueue(type, [content.record], position);
    else if (type in GROUPED_EVENT_TYPES) {
      this.#enqueue(GROUPED_EVENT_TYPES[type], splitGroupedEvent(type, content), position);
    } else this.#enqueue(type.replace("-end", ""), [content], position);
    this.#deliverQueue();
  }

  #parse(records) {
    const { parse } = this.#options;
    return parse ? records.map((text) => callSafely(() => parse(text))) : records;
  }

  /** Queue the payloads of one message. Its position is only reached after the last of them. */
  #enqueue(type, payloads, position) {
    const last = payloads.length - 1;
    payloads.forEach((payload, n) => {
      this.#queue.push({ type, payload, position: n === last ? position : undefined });
    });
  }

  #deliverQueue() {
    if (this.#isDelivering) return; // a callback called `connect`: the loop below goes on
    this.#isDelivering = true;
    while (this.#queue.length && this.#state !== "closed" && !this.#iteration) {
      this.#deliver(this.#queue.shift());
    }
    this.#isDelivering = false;
    this.#iteration?.wake?.();
  }

  async #next() {
    for (;;) {
      while (this.#queue.length && this.#state !== "closed") {
        const { type, payload } = this.#queue[0];
        const position = this.#deliver(this.#queue.shift());
        if (ITERATED_TYPES.has(type)) {
          return { done: false, value: { type, [type]: payload, position } };
        }
      }
      if (this.#state === "closed") {
        this.#iteration = null;
        if (this.#error) throw this.#error;
        return { done: true, value: undefined };
      }
      await new Promise((wake) => (this.#iteration = { wake }));
    }
  }

  /** Deliver one message to the page and move the position past it. Return that position. */
  #deliver({ type, payload, position: newPosition }) {
    const position = newPosition === undefined ? this.position : newPosition || null;
    const context = { position, id: this.id };
    if (type === "closed") this.#finish(payload);
    else if (type === "lost") this.#setState("reconnecting", payload.reason);
    else if (type === "trouble") this.#reportTrouble(payload);
    else if (type === "error") this.#emit(type, new StreamError(payload), context);
    else if (type !== "position") this.#emit(type, payload, context);
    if (["begin", "error", "ready"].includes(type)) this.#updateState(type, payload);
    if (type === "record" || type === "delete") this.#useCredit();
    if (this.position !== position) this.#setPosition(position);
    return position;
  }

  /** Be "stale" while partitions cannot be read: all that are there, or one that could be before. */
  #updateState(type, { partitions, pending, topic, partition, offset, code }) {
    let reason = "recovered";
    if (type === "begin") {
      reason = this.#endTrouble();
      if (partitions) { // else the view changed in place
        const total = Object.values(partitions).reduce((sum, count) => sum + count, 0);
        this.#failing = new Set((pending.length < total ? [] : pending).map(nameOf));
      }
    } else if (partition === undefined) return;
    else if (type === "ready") this.#failing.delete(nameOf({ topic, partition }));
    else if (offset === undefined) { // an error with an offset is about one record
      this.#failing.add(nameOf({ topic, partition }));
      reason = code;
    }
    this.#setState(this.#failing.size ? "stale" : "live", reason);
  }

  #setPosition(position) {
    this.position = position;
    this.#emit("position", position);
    if (!this.#options.store) return;
    this.#saveTimer ??= setTimeout(() => this.#savePosition(), SAVE_INTERVAL_MS);
  }

  #savePosition() {
    if (this.#saveTimer === null) return;
    clearTimeout(this.#saveTimer);
    this.#saveTimer = null;
    callSafely(() => this.#options.store.save(this.position));
  }

  /** Return credit by halves of what there is: a message for each record would cost too much. */
  #useCredit() {
    const { credit } = this.#request;
    if (credit === undefined || ++this.#usedCredit < credit / 2) return;
    this.#send({ type: "credit", attempt: this.#attempt, n: this.#usedCredit });
    this.#usedCredit = 0;
  }

  #settleWrite({ id, error, ...place }) {
    const { message, resolve, reject } = this.#writes.get(id) ?? {};
    if (!this.#writes.delete(id)) return;
    if (this.#state === "closed") this.#endTrouble();
    const { idempotencyKey } = message;
    if (error) reject(Object.assign(new StreamError(error), { idempotencyKey }));
    else resolve(place);
    this.#detachIfIdle();
  }

  #finish({ reason, error }) {
    this.#attempt++;
    const ended = ["closed", "lost", "trouble"];
    this.#queue = this.#queue.filter(({ type }) => !ended.includes(type));
    this.#endTrouble();
    this.#savePosition();
    this.#send({ type: "leave" });
    if (error) this.#error = error instanceof Error ? error : new StreamError(error);
    this.#setState("closed", reason ?? error?.code);
    if (error) this.#emit("error", this.#error);
    this.#iteration?.wake?.();
    this.#detachIfIdle();
  }

  /**
   * Tell the page why the stream does not begin: by its state each time, by the console once for a
   * server, and as an error once if the stream never began (a cut passes by itself).
   */
  #reportTrouble({ reason, attempts, hint }) {
    const { base, path } = this.#request;
    const isNew = this.#troubleReason === null;
    const error = new StreamError({ code: reason, message: hint, attempts, url: base + path });
    this.#troubleReason = reason;
    this.#emit("state", this.#state, { reason, attempts, hint });
    if (isNew && this.#state !== "reconnecting") this.#emit("error", error);
    if (warnedServers.has(base)) return;
    warnedServers.add(base);
    console.warn(`gateway.js: ${reason}: ${hint}. It goes on trying (${attempts} so far).`);
  }

  /** Return "recovered" if the page was told of a trouble, which has passed. */
  #endTrouble() {
    if (!this.#troubleReason) return undefined;
    warnedServers.delete(this.#request.base);
    this.#troubleReason = null;
    return "recovered";
  }

  #setState(state, reason) {
    if (this.#state === state) return;
    // A stream that has not begun yet stays "connecting", however often it tries.
    if (state === "reconnecting" && this.#state === "connecting") return;
    this.#state = state;
    this.#emit("state", state, { reason });
  }

  #emit(type, payload, context) {
    const callback = this.#options[`on${type}`];
    if (callback) callSafely(() => callback.call(this, payload, context));
    if (!this.#listenedTypes.has(type)) return;
    this.dispatchEvent(new CustomEvent(type, { detail: { ...context, [type]: payload } }));
  }
}
