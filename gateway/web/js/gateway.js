/**
 * Streams of the gateway in a page or in Node: records of Kafka, none lost and none twice,
 * over any cut.
 *
 *     import { connect } from "/gateway.js";
 *     const orders = connect("/events/orders", { onrecord: (order) => console.log(order) });
 *
 * One connection serves all tabs of an origin. It is owned by an Exchange, which lives in a
 * SharedWorker (whose script is this file), in a tab that the others elected, or in the page:
 *
 *     Stream - Link  == messages ==>  Exchange - Subscription - Socket or Source  ==>  gateway
 *
 * A Stream knows its own position, and that is all that has to outlive anything: whoever owns
 * the connection may go at any time; the next one is told where each Stream stands.
 *
 * @module
 */

const NAME = "gateway.js/1"; // of the worker, the channel and the locks; 1: what is said there
const FINAL = new Set(["until", "unsubscribed", "offset-out-of-range", "forbidden"]);
const PASSING = new Set([
  "kafka-unavailable", "rate-limited", "too-many-subscriptions", "internal-error",
]);
const YIELDED = new Set(["record", "delete", "gap", "snapshot"]);
const SILENCE = 15_000; // ms after which a socket is pinged; after twice that it is given up
const PATIENCE = 10_000; // ms for a worker to begin, or for a leading tab to answer
const SAVE_EVERY = 250; // ms
const RECENT = 64; // messages kept of a subscription for one that comes up behind it
const AT_ONCE = 50; // writes under way on one socket
const LINGER = 1_000; // ms for which a socket that nobody uses is kept
const MAX_DELAY = 30_000; // ms

/* Small things -------------------------------------------------------------------------- */

/** crypto.randomUUID is missing on plain http, but for localhost. */
function uuid() {
  if (globalThis.crypto.randomUUID) return crypto.randomUUID();
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** Milliseconds before the next attempt, drawn: a thousand clients do not come at once. */
const delay = (attempt) => Math.random() * Math.min(MAX_DELAY, 500 * 2 ** attempt);

/** The claims of a JWT; none of what is no JWT. */
function claims(jwt) {
  try {
    return JSON.parse(atob(jwt.split(".")[1].replace(/-/g, "+").replace(/_/g, "/")));
  } catch {
    return {};
  }
}

const expires = (jwt) => (claims(jwt).exp ?? Infinity) * 1000;

/** Whom a JWT speaks for: what stays when it is renewed. Two users' tabs share no socket. */
function identity(jwt) {
  if (!jwt) return "";
  const { exp, iat, nbf, jti, ...rest } = claims(jwt);
  return Object.keys(rest).length ? JSON.stringify(rest) : jwt;
}

/** Hold a lock as long as this page or worker lives. Resolves once it is held. */
function hold(name) {
  if (!globalThis.navigator?.locks) return Promise.resolve(); // plain http: nobody asks for it
  return new Promise((held) => {
    navigator.locks.request(name, () => (held(), new Promise(() => {})));
  });
}

/** Call back when the holder of the lock is gone, however it went. */
function gone(name, then) {
  globalThis.navigator?.locks?.request(name, () => void then());
}

/** The server's address, without a slash at its end, and the path of the stream there. */
function located(path, base) {
  if (/^(http|ws)s?:/i.test(path)) {
    const url = new URL(path.replace(/^ws/i, "http"));
    return { base: url.origin, path: url.pathname + url.search };
  }
  const here = globalThis.location?.href;
  if (!base && !here) throw new TypeError("outside a page, give a whole URL, or the option base");
  const root = new URL(base ?? "/", here).href.replace(/^ws/i, "http");
  return { base: root.replace(/\/$/, ""), path: `/${path.replace(/^\/+/, "")}` };
}

/** What a page throws in a callback is told as its error, and does not end its stream. */
function guarded(call) {
  try {
    return call();
  } catch (error) {
    if (globalThis.reportError) reportError(error);
    else setTimeout(() => { throw error; });
  }
}

/* Stream -------------------------------------------------------------------------------- */

/** What was refused, or is told of a partition. code: a word; details: all else that was said. */
export class StreamError extends Error {
  constructor({ type, code, message, ...details }) {
    super(message ?? code);
    this.name = "StreamError";
    this.code = code;
    this.details = details;
  }
}

/** `new Stream(path, options)`, connected. */
export function connect(path, options) {
  return new Stream(path, options).connect();
}

/** One stream. Its options, callbacks and events are described in gateway.d.ts. */
export class Stream extends EventTarget {
  #options;
  #request;
  #link = null;
  #linking = null;
  #state = "closed";
  #attempt = 0; // messages that answer an earlier one are dropped
  #received = null; // the position of what has come; `position` is of what was handed on
  #queue = []; // come, not handed on
  #draining = false;
  #reader = null; // of the async iterator
  #error = null;
  #owed = 0; // records handed on that the gateway was not told of
  #produced = new Map();
  #listened = new Set();
  #saving = null;

  constructor(path, options = {}) {
    super();
    const { from, filter, fields, credit, credentials, token, transport = "auto" } = options;
    if (!["auto", "eventsource", "websocket"].includes(transport)) {
      throw new TypeError(`transport ${transport} is none of auto, eventsource, websocket`);
    }
    if (transport === "eventsource" && (token || credit !== undefined)) {
      throw new TypeError("an EventSource takes neither token nor credit; use another transport");
    }
    this.id = uuid();
    this.position = options.position ?? null;
    this.#options = options;
    const view = { ...located(path, options.base), filter, fields };
    this.#request = { ...view, from, credit, credentials, transport, token: Boolean(token) };
  }

  /** "connecting", "live", "reconnecting" or "closed". */
  get state() {
    return this.#state;
  }

  /** Begin; after `close`, go on from where it stood. */
  connect() {
    if (this.#state !== "closed") return this;
    this.#error = null;
    this.#turn("connecting");
    this.#start(++this.#attempt);
    return this;
  }

  /** End it. The position stays, and `connect` goes on from there. */
  close() {
    if (this.#state !== "closed") this.#closed({});
  }

  /** Another filter, other fields, another path: nothing that matches both is lost. */
  change({ path, ...view }) {
    Object.assign(this.#request, view, path && located(path, this.#request.base));
    const { path: now, filter, fields } = this.#request;
    this.#send({ type: "change", attempt: this.#attempt, view: { path: now, filter, fields } });
  }

  /**
   * Write a record, where the route allows it. Resolves with its place in Kafka. Repeated after
   * a cut until it is answered; by its idempotency key it is written once.
   */
  produce(record) {
    const message = { idempotencyKey: uuid(), ...record, id: uuid() };
    return new Promise((resolve, reject) => {
      this.#produced.set(message.id, { message, resolve, reject });
      this.#attach().then((told) => told || this.#write(message));
    });
  }

  /** All records, deletes, gaps and snapshots, in order; connects. Leaving the loop closes. */
  [Symbol.asyncIterator]() {
    this.#reader ??= {};
    this.connect();
    const end = () => {
      this.#reader = null;
      this.close();
      return Promise.resolve({ done: true, value: undefined });
    };
    return { next: () => this.#next(), return: end };
  }

  addEventListener(type, ...rest) {
    this.#listened.add(type);
    super.addEventListener(type, ...rest);
  }

  async #start(attempt) {
    try {
      this.position ??= (await this.#options.store?.load()) ?? null;
    } catch (error) {
      this.#emit("error", error);
    }
    if (attempt !== this.#attempt) return;
    if (!this.#queue.length) this.#received = this.position; // else what is there comes first
    this.#drain();
    const told = await this.#attach();
    if (!told && attempt === this.#attempt) this.#open();
  }

  /** Resolves with true if the link is a new one: that says `up` to its streams. */
  async #attach() {
    if (this.#link) return false;
    try {
      this.#linking ??= linked(this.#options);
      const link = await this.#linking;
      if (this.#link) return false;
      this.#link = link;
    } catch (error) {
      this.#linking = null;
      for (const { reject } of this.#produced.values()) reject(error);
      this.#produced.clear();
      if (this.#state !== "closed") this.#closed({ error });
      return true;
    }
    this.#link.attach(this.id, {
      up: () => this.#up(),
      down: () => this.#state === "closed" || this.#turn("reconnecting"),
      receive: (message, attempt) => this.#receive(message, attempt),
      flush: () => this.#save(),
    });
    return true;
  }

  #detach() {
    if (this.#state !== "closed" || this.#produced.size) return;
    this.#link?.detach(this.id);
    this.#link = this.#linking = null;
  }

  #up() {
    for (const { message } of this.#produced.values()) this.#write(message);
    if (this.#state !== "closed") this.#open();
  }

  async #open() {
    const attempt = ++this.#attempt;
    const jwt = await this.#jwt();
    if (attempt !== this.#attempt) return;
    const { credit, ...request } = this.#request;
    if (credit !== undefined) {
      const waiting = this.#queue.filter(({ type }) => type === "record" || type === "delete");
      request.credit = Math.max(0, credit - waiting.length);
      this.#owed = 0;
    }
    this.#send({ type: "open", attempt, request, position: this.#received, jwt });
  }

  async #write(message) {
    const jwt = await this.#jwt();
    const { base, path } = this.#request;
    this.#send({ type: "produce", base, message: { path, ...message }, jwt });
  }

  #send(message) {
    this.#link?.send({ ...message, stream: this.id });
  }

  /** Asked until the page has one: there is no stream without. */
  async #jwt() {
    for (let failed = 0; this.#options.token; failed++) {
      try {
        return await this.#options.token();
      } catch (error) {
        this.#emit("error", error);
        await new Promise((resolve) => setTimeout(resolve, delay(failed)));
        if (this.#state === "closed" && !this.#produced.size) break;
      }
    }
    return undefined;
  }

  async #renew() {
    this.#send({ type: "token", jwt: await this.#jwt() });
  }

  #receive({ type, position, ...told }, attempt) {
    if (type === "answer") return this.#answered(told);
    if (type === "token") return this.#renew();
    if (attempt !== this.#attempt) return;
    if (position !== undefined) this.#received = position || null;
    if (type === "records") {
      const last = told.records.length - 1;
      told.records.forEach((what, n) => {
        this.#queue.push({ type: "record", what, position: n === last ? position : undefined });
      });
    } else if (type === "delete") this.#queue.push({ type, what: told.record, position });
    else if (type in GROUPED) {
      const each = separated(type, told);
      const last = each.length - 1;
      each.forEach((what, n) => {
        this.#queue.push({ type: GROUPED[type], what, position: n === last ? position : undefined });
      });
    } else this.#queue.push({ type: type.replace("-end", ""), what: told, position });
    this.#drain();
  }

  #drain() {
    if (this.#draining) return;
    this.#draining = true;
    while (this.#queue.length && this.#state !== "closed" && !this.#reader) {
      this.#hand(this.#queue.shift());
    }
    this.#draining = false;
    this.#reader?.wake?.();
  }

  async #next() {
    for (;;) {
      while (this.#queue.length && this.#state !== "closed") {
        const { type, what } = this.#queue[0];
        const position = this.#hand(this.#queue.shift());
        if (YIELDED.has(type)) return { done: false, value: { type, [type]: what, position } };
      }
      if (this.#state === "closed") {
        this.#reader = null;
        if (this.#error) throw this.#error;
        return { done: true, value: undefined };
      }
      await new Promise((wake) => (this.#reader = { wake }));
    }
  }

  /** One thing to the page; then the position lies behind it. Returns that. */
  #hand({ type, what, position }) {
    const after = position === undefined ? this.position : position || null;
    const context = { position: after, id: this.id };
    if (type === "closed") this.#closed(what);
    else if (type === "lost") this.#turn("reconnecting", what.reason);
    else if (type === "error") this.#emit(type, new StreamError(what), context);
    else if (type !== "position") this.#emit(type, what, context);
    if (type === "begin") this.#turn("live");
    if (type === "record" || type === "delete") this.#owe();
    if (this.position !== after) this.#move(after);
    return after;
  }

  #move(position) {
    this.position = position;
    this.#emit("position", position);
    if (this.#options.store) this.#saving ??= setTimeout(() => this.#save(), SAVE_EVERY);
  }

  #save() {
    if (this.#saving === null) return;
    clearTimeout(this.#saving);
    this.#saving = null;
    guarded(() => this.#options.store.save(this.position));
  }

  /** What was handed on may be sent again, told by halves: not each is worth a message. */
  #owe() {
    const { credit } = this.#request;
    if (credit === undefined || ++this.#owed < credit / 2) return;
    this.#send({ type: "credit", attempt: this.#attempt, n: this.#owed });
    this.#owed = 0;
  }

  #answered({ id, error, ...place }) {
    const { message, resolve, reject } = this.#produced.get(id) ?? {};
    if (!this.#produced.delete(id)) return;
    const { idempotencyKey } = message;
    if (error) reject(Object.assign(new StreamError(error), { idempotencyKey }));
    else resolve(place);
    this.#detach();
  }

  #closed({ reason, error }) {
    this.#attempt++;
    this.#queue = this.#queue.filter(({ type }) => type !== "closed" && type !== "lost");
    this.#save();
    this.#send({ type: "leave" });
    if (error) this.#error = error instanceof Error ? error : new StreamError(error);
    this.#turn("closed", reason ?? error?.code);
    if (error) this.#emit("error", this.#error);
    this.#reader?.wake?.();
    this.#detach();
  }

  #turn(state, reason) {
    if (this.#state === state) return;
    if (state === "reconnecting" && this.#state === "connecting") return; // it never was
    this.#state = state;
    this.#emit("state", state, { reason });
  }

  #emit(type, what, context) {
    const callback = this.#options[`on${type}`];
    if (callback) guarded(() => callback.call(this, what, context));
    if (!this.#listened.has(type)) return;
    this.dispatchEvent(new CustomEvent(type, { detail: { ...context, [type]: what } }));
  }
}

/* Link: the way from the streams of a page to an Exchange -------------------------------- */

class Link {
  streams = new Map();
  isUp = false;

  attach(id, stream) {
    if (!this.streams.size) {
      for (const type of ["pagehide", "pageshow"]) globalThis.addEventListener?.(type, this);
    }
    this.streams.set(id, stream);
    if (this.isUp) stream.up();
  }

  detach(id) {
    this.streams.delete(id);
    if (this.streams.size) return;
    for (const type of ["pagehide", "pageshow"]) globalThis.removeEventListener?.(type, this);
  }

  /** Somebody owns a connection, perhaps somebody new: every stream says where it stands. */
  up() {
    this.isUp = true;
    for (const stream of [...this.streams.values()]) stream.up();
  }

  down() {
    this.isUp = false;
    for (const stream of [...this.streams.values()]) stream.down();
  }

  heard({ to, message }) {
    for (const [id, attempt] of to) this.streams.get(id)?.receive(message, attempt);
  }

  /** A page that is left may be shown again as it was. */
  handleEvent({ type, persisted }) {
    if (type === "pageshow") return persisted && this.join();
    for (const stream of this.streams.values()) stream.flush();
    this.leave();
  }
}

/** To an Exchange of this page's own. */
class LocalLink extends Link {
  #exchange;
  #port = { post: (message) => queueMicrotask(() => this.heard(message)) };

  constructor(implementations) {
    super();
    this.#exchange = new Exchange(implementations);
    this.up();
  }

  join() {
    this.up();
  }

  leave() {
    this.down();
    this.#exchange.close();
  }

  send(message) {
    this.#exchange.receive(this.#port, null, message);
  }
}

/** To the SharedWorker of the origin. */
class WorkerLink extends Link {
  #script;
  #port = null;

  constructor(script) {
    super();
    this.#script = script;
  }

  /** Resolves when the worker answers; rejects when there is none, or not within `patience`. */
  async join(patience) {
    const tab = `${NAME} tab ${uuid()}`;
    await hold(tab);
    const worker = new SharedWorker(this.#script, { type: "module", name: NAME });
    const port = (this.#port = worker.port);
    await new Promise((resolve, reject) => {
      const refuse = (why) => (port.close(), reject(new Error(`the shared worker ${why}`)));
      worker.onerror = () => refuse(`cannot be had from ${this.#script}`);
      if (patience) setTimeout(() => this.isUp || refuse("does not answer"), patience);
      port.onmessage = ({ data }) => {
        if (!data.hello) return this.heard(data);
        gone(data.hello, () => this.#died(port));
        resolve();
      };
      port.postMessage({ hello: tab });
    });
    this.up();
    return this;
  }

  leave() {
    this.send({ type: "bye" });
    this.#port = null;
    this.down();
  }

  send(message) {
    if (this.isUp) this.#port.postMessage(message);
  }

  #died(port) {
    if (port !== this.#port) return;
    this.down();
    this.join().catch(() => setTimeout(() => this.#died(this.#port), delay(4)));
  }
}

/** To the tab that leads, perhaps this one; all of them speak on one BroadcastChannel. */
class ChannelLink extends Link {
  #channel = new BroadcastChannel(NAME);
  #tab = "";
  #leader = "";
  #exchange = null; // while this tab leads
  #candidacy = null;
  #resign = null;
  #asked = 0;
  #own = { post: (message) => queueMicrotask(() => this.heard(message)) };
  #others = { post: (message) => this.#channel.postMessage({ from: this.#tab, ...message }) };

  constructor() {
    super();
    this.#channel.onmessage = ({ data }) => this.#said(data);
    setInterval(() => this.#watch(), PATIENCE / 4);
  }

  async join() {
    this.#tab = `${NAME} tab ${uuid()}`;
    this.#candidacy = new AbortController();
    await hold(this.#tab);
    this.#campaign();
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
    if (this.#exchange) this.#exchange.receive(this.#own, null, message);
    else if (this.#leader) {
      this.#channel.postMessage({ for: this.#leader, tab: this.#tab, message });
    }
  }

  /** Lead as soon as nobody does, and ask who does; `steal`: at once. */
  #campaign(steal = false) {
    const { signal } = this.#candidacy;
    const options = steal ? { steal } : { signal };
    navigator.locks.request(`${NAME} leader`, options, () => this.#lead()).catch(() => {
      if (signal.aborted) return;
      this.#stepDown(); // another tab took it: this one had not answered
      this.#campaign();
    });
    if (!steal) this.#channel.postMessage({ who: true });
  }

  #lead() {
    this.#exchange = new Exchange();
    this.#leader = this.#tab;
    this.#channel.postMessage({ leader: this.#tab });
    this.up();
    return new Promise((resign) => (this.#resign = resign));
  }

  #stepDown() {
    this.#exchange?.close();
    this.#exchange = this.#resign = null;
    this.#leader = "";
    this.down();
  }

  #said({ who, leader, from, to, message, tab, ...rest }) {
    if (who && this.#exchange) this.#channel.postMessage({ leader: this.#tab });
    else if (leader) this.#follow(leader);
    else if (to && from === this.#leader) this.heard({ to, message });
    else if (tab && rest.for === this.#tab) this.#exchange?.receive(this.#others, tab, message);
  }

  #follow(leader) {
    this.#asked = 0;
    if (this.#exchange || !this.#tab || leader === this.#leader) return;
    this.#leader = leader;
    this.up();
  }

  /** A hidden tab may be frozen by its browser with the lock in its hands: one that is seen
   * takes it away. Answering needs no timer, which hidden tabs have one a minute. */
  #watch() {
    if (this.#exchange || !this.#tab) return;
    if (document.visibilityState !== "visible") this.#asked = 0;
    else if (!this.#asked) this.#asked = Date.now();
    else if (Date.now() - this.#asked > PATIENCE) {
      this.#asked = 0;
      return this.#campaign(true);
    }
    this.#channel.postMessage({ who: true });
  }
}

const links = new Map();

/** The link for a stream's options: one of each kind in a page. */
async function linked({ share = true, worker = import.meta.url, WebSocket, EventSource }) {
  const once = (key, make) => {
    if (!links.has(key)) links.set(key, make());
    return links.get(key);
  };
  const own = () => new LocalLink({ WebSocket, EventSource });
  const byPage = () => once(WebSocket ?? EventSource ?? "page", own);
  const byChannel = () => once("channel", () => new ChannelLink().join());
  const byWorker = (patience) =>
    once(`worker ${worker}`, () => new WorkerLink(worker).join(patience));
  if (share === false) return own();
  if (share === "worker") return byWorker();
  if (share === "channel") return byChannel();
  const isPage = typeof document !== "undefined" && !WebSocket && !EventSource;
  if (share === "page" || !isPage) return byPage();
  const otherwise = navigator.locks && globalThis.BroadcastChannel ? byChannel : byPage;
  const mine = new URL(worker, location.href).origin === location.origin;
  if (!globalThis.SharedWorker || !mine) return otherwise();
  return byWorker(PATIENCE).catch(otherwise);
}

/* Exchange: the subscriptions of all streams that share a connection --------------------- */

/** A subscription at the gateway, and the streams that hear it: all stand at its position. */
class Subscription {
  members = new Set();
  carrier = null; // a Socket, or a Source of its own
  begun = false;
  clean = true; // nothing has come since the position
  recent = []; // messages, while there is another one of the view
  attempts = 0;
  before = null; // the request that another one is to replace
  changed = false; // begins where a subscription of another view stood

  constructor(request, position, jwt) {
    this.position = position ?? "";
    this.jwt = jwt;
    const alone = request.credit !== undefined || /[?&]until=/.test(request.path);
    this.scope = [identity(jwt), alone ? uuid() : ""];
    this.view(request);
  }

  view(request) {
    const { base, path, filter, fields } = request;
    this.request = request;
    this.key = JSON.stringify([this.scope, base, path, filter, fields]);
  }

  /** Can it go either way, by WebSocket and by EventSource? */
  get isFree() {
    const { transport, token, credit } = this.request;
    return transport === "auto" && !token && credit === undefined;
  }
}

class Exchange {
  #members = new Map(); // id of a stream -> { stream, attempt, port, tab, jwt, subscription }
  #subscriptions = new Set();
  #sockets = new Map();
  #tabs = new Set();
  #blocked = new Set(); // servers to which no WebSocket came through

  constructor({ WebSocket, EventSource } = {}) {
    this.WebSocket = WebSocket ?? globalThis.WebSocket;
    this.EventSource = EventSource ?? globalThis.EventSource;
  }

  close() {
    for (const member of [...this.#members.values()]) this.#leave(member);
    for (const socket of [...this.#sockets.values()]) socket.close();
  }

  /** What a stream says. port: where its page listens; tab: the lock that page holds. */
  receive(port, tab, { type, stream, attempt, ...said }) {
    if (tab && !this.#tabs.has(tab)) {
      this.#tabs.add(tab);
      gone(tab, () => this.drop(tab));
    }
    const member = this.#members.get(stream);
    if (type === "open") this.#open({ stream, attempt, port, tab, jwt: said.jwt }, said);
    else if (type === "produce") this.#produce({ stream, port, jwt: said.jwt }, said);
    else if (type === "bye") this.drop(tab);
    else if (type === "leave" && member) this.#leave(member);
    else if (type === "token" && member) member.subscription.carrier.renew?.(said.jwt);
    else if (member?.attempt !== attempt) return;
    else if (type === "change") this.#change(member, said.view);
    else if (type === "credit") member.subscription.carrier.credit(member.subscription, said.n);
  }

  /** The tab is gone, or going. */
  drop(tab) {
    this.#tabs.delete(tab);
    for (const member of [...this.#members.values()]) if (member.tab === tab) this.#leave(member);
  }

  #open(member, { request, position }) {
    const old = this.#members.get(member.stream);
    if (old) this.#leave(old);
    this.#subscribe(member, new Subscription(request, position, member.jwt));
  }

  /** Everyone begins with a subscription of its own, from its own position; then `#meet`. */
  #subscribe(member, subscription) {
    this.#members.set(member.stream, member);
    this.#subscriptions.add(subscription);
    subscription.members.add(member);
    member.subscription = subscription;
    this.#carry(subscription);
  }

  #carry(subscription) {
    const { base, transport } = subscription.request;
    const blocked = this.EventSource && (!this.WebSocket || this.#blocked.has(base));
    const plain = transport === "eventsource" || (subscription.isFree && blocked);
    const way = plain ? "EventSource" : "WebSocket";
    if (!this[way]) {
      const error = { code: "unsupported", message: `no ${way} here; give one as an option` };
      return queueMicrotask(() => this.#finish(subscription, { error }));
    }
    const { jwt } = subscription;
    subscription.carrier = plain ? new Source(this, subscription) : this.#socket(base, jwt);
    subscription.carrier.open(subscription);
  }

  /** What could not be opened one way may come through the other. False if there is none. */
  swap(subscription, blocked) {
    if (!subscription.isFree || !this.WebSocket || !this.EventSource) return false;
    this.#blocked[blocked ? "add" : "delete"](subscription.request.base);
    subscription.carrier.leave(subscription);
    this.#carry(subscription);
    return true;
  }

  #socket(base, jwt) {
    const key = `${base} ${identity(jwt)}`;
    const known = this.#sockets.get(key);
    if (known && jwt && expires(jwt) > expires(known.jwt)) known.renew(jwt);
    if (known) return known;
    const socket = new Socket(this, base, jwt, () => this.#sockets.delete(key));
    this.#sockets.set(key, socket);
    return socket;
  }

  #produce(member, { base, message, jwt }) {
    if (this.WebSocket) return this.#socket(base, jwt).produce(member, message);
    const error = { code: "unsupported", message: "to produce takes a WebSocket; give one" };
    post([member], { type: "answer", id: message.id, error });
  }

  #leave(member) {
    const { subscription } = member;
    this.#members.delete(member.stream);
    subscription.members.delete(member);
    if (!subscription.members.size) this.#end(subscription);
  }

  #end(subscription) {
    this.#subscriptions.delete(subscription);
    subscription.carrier?.leave(subscription);
  }

  /** In place where nobody else hears it and the transport can; else by a new subscription. */
  #change(member, view) {
    const { subscription } = member;
    const { request, position, begun, changed, carrier, members } = subscription;
    const next = { ...request, ...view };
    if (members.size === 1 && carrier?.change && begun && !subscription.before) {
      subscription.before = request;
      subscription.view(next);
      return carrier.change(subscription);
    }
    this.#leave(member);
    const other = new Subscription(next, position, subscription.jwt);
    other.changed = begun || changed;
    this.#subscribe(member, other);
  }

  /** A carrier heard something for a subscription. */
  take(subscription, message) {
    const { type, position } = message;
    if (!this.#subscriptions.has(subscription)) return;
    if (type === "end") return this.#ended(subscription, message);
    if (type === "error" && message.partition === undefined) {
      if (this.#refused(subscription, message)) return;
    }
    if (type === "begin") this.#begun(subscription, message);
    if (position) Object.assign(subscription, { position, clean: true });
    else if (["records", "delete", "gap"].includes(type)) subscription.clean = false;
    post(subscription.members, message);
    const others = [...this.#subscriptions].filter((other) => {
      return other !== subscription && other.begun && other.key === subscription.key;
    });
    if (type === "begin" || !others.length) subscription.recent = [];
    else if (subscription.recent.push(message) > RECENT) subscription.recent.shift();
    if (position) this.#meet(subscription, others);
  }

  #begun(subscription, message) {
    subscription.begun = true;
    subscription.attempts = 0;
    if (message.changed) subscription.before = null;
    else if (subscription.changed) message.changed = true;
    subscription.changed = false;
  }

  /** Two of one view go on as one: where one stands the other has stood, a moment ago or now,
   * and what came to that since is handed on. Under load they never stand together. */
  #meet(one, others) {
    for (const other of others) {
      if (!one.begun || one.before || other.before) continue;
      const { position, recent } = other;
      let at = recent.findLastIndex((message) => message.position === one.position);
      if (at < 0 && other.clean && position === one.position) at = recent.length;
      if (at < 0) continue;
      for (const message of recent.slice(at + 1)) post(one.members, message);
      for (const member of one.members) {
        member.subscription = other;
        other.members.add(member);
      }
      one.members.clear();
      return this.#end(one);
    }
  }

  /** Its connection was lost; the next one begins with the view as it is by now. */
  lost(subscription, reason) {
    if (!this.#subscriptions.has(subscription)) return;
    Object.assign(subscription, { begun: false, before: null });
    post(subscription.members, { type: "lost", reason });
  }

  #ended(subscription, { reason, position, retry }) {
    if (position) subscription.position = position;
    if (FINAL.has(reason)) return this.#finish(subscription, { reason, position });
    this.lost(subscription, reason);
    subscription.carrier.again(subscription, reason, retry ?? delay(++subscription.attempts));
  }

  /** True if the error was about the subscription itself, and is dealt with. */
  #refused(subscription, error) {
    const { begun, before, position, carrier, jwt } = subscription;
    const again = () => carrier.again(subscription, error.code, delay(++subscription.attempts));
    if (begun && before) {
      // The gateway may have ended it over that: it is begun anew, as it was.
      subscription.view(before);
      subscription.before = null;
      post(subscription.members, error);
      carrier.leave(subscription);
      carrier.open(subscription);
    } else if (error.code === "unknown-subscription") {
      if (begun) again(); // else it crossed with an end that was dealt with
    } else if (error.code === "position-refused" && position) {
      const nowhere = { topic: null, partition: null, from: null, to: null };
      subscription.position = ""; // told as an EventSource is: never silently from elsewhere
      const gap = { type: "gap", ...nowhere, reason: error.code, position: "" };
      post(subscription.members, gap);
      carrier.again(subscription, error.code, 0);
    } else if (PASSING.has(error.code)) {
      post(subscription.members, error);
      this.lost(subscription, error.code);
      again();
    } else if (error.code === "unauthorized" && jwt && subscription.attempts < 3) {
      carrier.ask();
      again();
    } else if (begun) return false;
    else this.#finish(subscription, { error });
    return true;
  }

  #finish(subscription, told) {
    post(subscription.members, { type: "closed", ...told });
    for (const member of [...subscription.members]) this.#leave(member);
  }
}

/** One message to the members, once for each port that they listen at. */
function post(members, message) {
  const ports = new Map();
  for (const { port, stream, attempt } of members) {
    if (!ports.has(port)) ports.set(port, []);
    ports.get(port).push([stream, attempt]);
  }
  for (const [port, to] of ports) port.post({ to, message });
}

/* Socket: one WebSocket for many subscriptions ------------------------------------------- */

class Socket {
  #exchange;
  #url;
  #done;
  #socket = null; // open, or about to be
  #isOpen = false;
  #wasOpen = false;
  #attempts = 0;
  #count = 0;
  #subscriptions = new Set();
  #ids = new Map(); // id on this socket -> Subscription
  #produced = new Map(); // id -> { member, message, sent }: not answered
  #heardAt = 0;
  #asked = 0;
  #timers = {};

  constructor(exchange, base, jwt, done) {
    this.jwt = jwt;
    this.#exchange = exchange;
    this.#url = `${base.replace(/^http/, "ws")}/ws`;
    this.#done = done;
    globalThis.addEventListener?.("online", this);
    this.#connect();
  }

  close() {
    for (const name of Object.keys(this.#timers)) this.#later(name);
    globalThis.removeEventListener?.("online", this);
    this.#drop();
    this.#done();
  }

  handleEvent() {
    this.#hurry(); // the network is back
  }

  open(subscription) {
    this.#subscriptions.add(subscription);
    this.#later("idle");
    if (this.#isOpen) this.#subscribe(subscription);
  }

  leave(subscription) {
    clearTimeout(subscription.waiting);
    this.#subscriptions.delete(subscription);
    if (this.#ids.delete(subscription.id)) this.#send({ type: "unsubscribe", id: subscription.id });
    this.#idle();
  }

  /** The whole view: with a path, what is absent is not there. */
  change({ id, request: { path, filter, fields } }) {
    const view = { filter: filter ?? undefined, fields: fields ?? undefined };
    this.#send({ type: "change", id, path, ...view });
  }

  credit({ id, begun }, n) {
    if (begun) this.#send({ type: "credit", id, n });
  }

  produce(member, message) {
    this.#later("idle");
    const { sent = false } = this.#produced.get(message.id) ?? {};
    this.#produced.set(message.id, { member, message, sent });
    this.#write();
  }

  renew(jwt) {
    if (jwt) this.jwt = jwt;
    this.#watchExpiry();
    if (jwt) this.#send({ type: "token", jwt });
    this.#hurry();
  }

  /** Subscribe once more: what a draining server ended, at the next one. */
  again(subscription, reason, wait) {
    this.#ids.delete(subscription.id);
    if (reason === "drain") return this.#later("drained", LINGER, () => this.#lost({ code: 1012 }));
    subscription.waiting = setTimeout(() => this.open(subscription), wait);
  }

  /** One page after the other is asked for a new token: any may be frozen. */
  ask() {
    const members = this.#members().filter(({ jwt }) => jwt);
    if (members.length) post([members[this.#asked++ % members.length]], { type: "token" });
  }

  #connect() {
    this.#later("retry");
    if (expires(this.jwt) <= Date.now()) {
      this.ask();
      return this.#retry();
    }
    const protocols = this.jwt ? ["gateway.v1", `bearer.${this.jwt}`] : ["gateway.v1"];
    const socket = (this.#socket = new this.#exchange.WebSocket(this.#url, protocols));
    const mine = (act) => (event) => socket === this.#socket && act(event);
    socket.onopen = mine(() => this.#opened());
    socket.onmessage = mine(({ data }) => this.#heard(JSON.parse(data)));
    socket.onclose = mine((event) => this.#lost(event));
    socket.onerror = () => {}; // onclose follows
  }

  #opened() {
    this.#isOpen = this.#wasOpen = true;
    this.#heardAt = Date.now();
    for (const subscription of this.#subscriptions) this.#subscribe(subscription);
    for (const each of this.#produced.values()) each.sent = false;
    this.#write();
    this.#watchExpiry();
    this.#watchSilence();
  }

  #subscribe(subscription) {
    clearTimeout(subscription.waiting);
    const id = (subscription.id = `s${++this.#count}`);
    this.#ids.set(id, subscription);
    const { position, request } = subscription;
    const { path, from, filter, fields, credit } = request;
    const start = position ? { lastEventId: position } : { from };
    const view = { path: grouping(path), filter: filter ?? undefined, fields: fields ?? undefined };
    subscription.clean = true;
    this.#send({ type: "subscribe", id, ...view, ...start, credit });
  }

  #heard({ id, ...message }) {
    this.#heardAt = Date.now();
    this.#attempts = 0;
    const { type } = message;
    const subscription = this.#ids.get(id);
    if (subscription) this.#exchange.take(subscription, message);
    else if (this.#produced.has(id) && message.code === "draining") return; // by the next socket
    else if (this.#produced.has(id)) this.#answered(id, message);
    else if (type === "challenge") this.ask();
    else if (type === "error" && id === undefined) post(this.#members(), message);
  }

  /** As many as may be under way; the gateway refuses more. */
  #write() {
    let room = AT_ONCE;
    for (const each of this.#produced.values()) {
      if (!this.#isOpen || room-- === 0) return;
      if (!each.sent) this.#send({ type: "produce", ...each.message });
      each.sent = true;
    }
  }

  #answered(id, { type, ...answer }) {
    const { member } = this.#produced.get(id);
    this.#produced.delete(id);
    this.#write();
    const told = type === "error" ? { error: answer } : answer;
    post([member], { type: "answer", id, ...told });
    this.#idle();
  }

  #lost({ code } = {}) {
    const opened = this.#isOpen;
    this.#drop();
    this.#later("drained");
    if (!opened) this.#attempts++;
    if (!opened && this.jwt) this.ask(); // a browser does not tell that it was refused
    this.#ids.clear();
    const all = [...this.#subscriptions];
    for (const subscription of all) this.#exchange.lost(subscription);
    if (this.#attempts > 1 && !this.#wasOpen) {
      for (const subscription of all) this.#exchange.swap(subscription, true);
    }
    if (!this.#subscriptions.size && !this.#produced.size) return this.close();
    if (code === 1012) this.#attempts = Math.max(this.#attempts, 2); // all of its clients come
    if (code === 1013) this.#attempts = Math.max(this.#attempts, 4); // or what is busy stays so
    this.#retry();
  }

  #drop() {
    const socket = this.#socket;
    this.#socket = null;
    this.#isOpen = false;
    this.#later("silence");
    socket?.close();
  }

  #retry() {
    this.#later("retry", delay(this.#attempts), () => this.#connect());
  }

  #hurry() {
    if (this.#timers.retry) this.#connect();
  }

  #send(message) {
    if (this.#isOpen) this.#socket.send(JSON.stringify(message));
  }

  #idle() {
    if (this.#subscriptions.size || this.#produced.size) return;
    this.#later("idle", LINGER, () => this.close());
  }

  #members() {
    const all = [...this.#subscriptions].flatMap(({ members }) => [...members]);
    return [...all, ...[...this.#produced.values()].map(({ member }) => member)];
  }

  #watchExpiry() {
    const left = expires(this.jwt) - Date.now();
    if (left === Infinity) return;
    const wait = Math.max(1_000, left - Math.min(30_000, left / 5));
    this.#later("expiry", Math.min(wait, 2 ** 31 - 1), () => (this.ask(), this.#watchExpiry()));
  }

  /** A browser does not show the server's pings, and TCP may take a quarter of an hour. */
  #watchSilence() {
    const silent = Date.now() - this.#heardAt;
    if (silent >= 2 * SILENCE) return this.#lost();
    if (silent >= SILENCE) this.#send({ type: "ping" });
    this.#later("silence", SILENCE / 3, () => this.#watchSilence());
  }

  /** One timer of each name; without a callback, none. */
  #later(name, wait, then) {
    clearTimeout(this.#timers[name]);
    delete this.#timers[name];
    if (then) this.#timers[name] = setTimeout(() => (delete this.#timers[name], then()), wait);
  }
}

/* Events about many partitions, which a path asks for, and what each of these is told ---------- */

const GROUPED = { "partitions-ready": "ready", "partitions-error": "error" };

/** The path or URL, with `?grouped` in its query. */
function grouping(path) {
  return /[?&]grouped\b/.test(path) ? path : `${path}${path.includes("?") ? "&" : "?"}grouped=true`;
}

/** What single `ready` or `error` events would have said, in order. */
function separated(type, { topics }) {
  return topics.flatMap(({ topic, code, resolved, partitions, offsets }) =>
    partitions.map((partition, n) => {
      if (type === "partitions-ready") return { topic, partition, offset: offsets[n], resolved };
      const what = `${topic}-${partition} cannot be read for now (${code})`;
      return { topic, partition, code, message: `${what}; the stream goes on by itself` };
    }),
  );
}

/* Source: an EventSource for one subscription -------------------------------------------- */

const EVENTS = ["message", "begin", "ready", "position", "gap", "delete"];
EVENTS.push("snapshot-end", "challenge", "end", "error", ...Object.keys(GROUPED));

class Source {
  #exchange;
  #subscription;
  #source = null;
  #wasOpen = false;
  #timer = null;

  constructor(exchange, subscription) {
    this.#exchange = exchange;
    this.#subscription = subscription;
  }

  open() {
    clearTimeout(this.#timer);
    const { request, position } = this.#subscription;
    const { base, path, from, filter, fields, credentials } = request;
    const url = new URL(base + grouping(path));
    const start = position ? { lastEventId: position } : { from };
    const asked = { ...start, filter: filter && JSON.stringify(filter), fields: fields?.join() };
    for (const [name, value] of Object.entries(asked)) if (value) url.searchParams.set(name, value);
    const options = { withCredentials: Boolean(credentials) };
    const source = (this.#source = new this.#exchange.EventSource(url.href, options));
    this.#subscription.clean = true;
    this.#wasOpen = false;
    source.onopen = () => (this.#wasOpen = true);
    for (const name of EVENTS) {
      source.addEventListener(name, (event) => {
        if (source !== this.#source) return;
        if (event.data !== undefined) this.#heard(event);
        else if (name === "error") this.#failed(source, url.href, credentials);
      });
    }
  }

  leave() {
    clearTimeout(this.#timer);
    this.#source?.close();
    this.#source = null;
  }

  /** It does come back by itself, with the server's `retry:`, unless it was given up. */
  again(subscription, reason, wait) {
    if (this.#source?.readyState !== 2) return;
    this.#timer = setTimeout(() => this.open(), wait);
  }

  #heard({ type, data, lastEventId }) {
    let told = data;
    try {
      told = JSON.parse(data);
    } catch { /* the text of a record of format value */ }
    // An event without an id of its own has that of the one before.
    const position = lastEventId === this.#subscription.position ? undefined : lastEventId;
    if (type === "challenge") return this.#renew(told.url);
    if (type === "message") told = { type: "records", records: [told], position };
    else if (type === "delete") told = { type, record: told, position };
    else told = { ...told, type, position };
    this.#exchange.take(this.#subscription, told);
  }

  /** By the cookies that the browser has by then: an EventSource has no token. */
  #renew(path) {
    const { base, credentials } = this.#subscription.request;
    const at = new URL(path, base).href;
    const url = at.startsWith(`${base}/`) ? at : base + path; // a proxy took the prefix off
    const sent = fetch(url, { method: "POST", credentials: credentials ? "include" : "same-origin" });
    sent.catch(() => {}); // the stream ends then, and comes back
  }

  async #failed(source, url, credentials) {
    const subscription = this.#subscription;
    this.#exchange.lost(subscription);
    if (source.readyState !== 2 && this.#wasOpen) return;
    source.close();
    const error = await refusal(url, credentials, subscription.position);
    if (source !== this.#source) return;
    if (error) return this.#exchange.take(subscription, { type: "error", ...error });
    const next = () => this.#wasOpen || !this.#exchange.swap(subscription, false);
    this.#timer = setTimeout(() => next() && this.open(), delay(++subscription.attempts));
  }
}

/** Why an EventSource was refused, which it does not tell; null if it is to be tried again. */
async function refusal(url, credentials, position) {
  const control = new AbortController();
  try {
    const answer = await fetch(url, {
      headers: { Accept: "text/event-stream" },
      credentials: credentials ? "include" : "same-origin",
      signal: control.signal,
    });
    const { status } = answer;
    if (status < 400 || status >= 500 || [408, 425, 429].includes(status)) return null;
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

/* The worker ----------------------------------------------------------------------------- */

function serve(worker) {
  const exchange = new Exchange();
  const lock = `${NAME} worker ${uuid()}`;
  const held = hold(lock);
  worker.onconnect = ({ ports: [port] }) => {
    let tab = "";
    const back = { post: (message) => port.postMessage(message) };
    port.onclose = () => exchange.drop(tab); // where there are no locks, and browsers tell
    port.onmessage = async ({ data }) => {
      if (!data.hello) return exchange.receive(back, tab, data);
      tab = data.hello;
      await held;
      port.postMessage({ hello: lock });
    };
  };
}

if (globalThis.SharedWorkerGlobalScope && globalThis.name === NAME) serve(globalThis);
