import { drawBackoff } from "../backoff.js";
import { getExpiry } from "../jwt.js";
import { splitRecords } from "../record-texts.js";
import { postToMembers } from "./members.js";

const PING_AFTER_MS = 15_000; // of silence; after twice that the socket is given up
const MAX_WRITES_IN_FLIGHT = 50; // the gateway refuses more on one socket
const OPEN_TIMEOUT_MS = 20_000; // for a handshake: a browser waits for minutes
// The first two attempts are shorter, so that it is soon found out why no socket opens: some
// servers, such as that of Vite, leave a handshake for another path unanswered.
const FIRST_OPEN_TIMEOUT_MS = 5_000;
const IDLE_TIMEOUT_MS = 1_000; // for which an unused socket is kept
const DRAIN_TIMEOUT_MS = 1_000; // for a draining server to close the socket by itself
const MAX_TIMER_MS = 2 ** 31 - 1; // longer ones fire at once

// Close codes (RFC 6455 7.4, and its registry at IANA), with the attempt at which the backoff
// starts: all clients of a server that restarts come back, and what is busy stays so for a while.
const MIN_ATTEMPTS_BY_CLOSE_CODE = { 1012: 2, 1013: 4 };
const SERVICE_RESTART = 1012;

/** One WebSocket for many subscriptions, and for writes. It reconnects by itself. */
export class WebSocketTransport {
  #multiplexer;
  #url;
  #onClose;
  #socket = null; // open, or connecting
  #isOpen = false;
  #hasEverOpened = false;
  #attempts = 0; // that failed since a message was last received
  #restartDelayMs; // what a draining server said, so that not all come back at once
  #lastNumber = 0; // of the ids of subscriptions
  #subscriptions = new Set();
  #subscriptionsById = new Map(); // of this socket
  #writes = new Map(); // id -> { member, message, isSent }: not answered
  #receivedAt = 0; // ms since 1970
  #tokenRequests = 0;
  #timers = {};

  /**
   * @param {import("./multiplexer.js").Multiplexer} multiplexer
   * @param {string} base The gateway's address.
   * @param {string | undefined} jwt
   * @param {() => void} onClose Called when the transport is over: it does not reconnect.
   */
  constructor(multiplexer, base, jwt, onClose) {
    this.jwt = jwt;
    this.#multiplexer = multiplexer;
    this.#url = `${base.replace(/^http/, "ws")}/ws`;
    this.#onClose = onClose;
    globalThis.addEventListener?.("online", this);
    this.#connect();
  }

  close() {
    for (const name of Object.keys(this.#timers)) this.#clearTimer(name);
    globalThis.removeEventListener?.("online", this);
    this.#dropSocket();
    this.#onClose();
  }

  /** Reconnect when the network is back (the event `online`). */
  handleEvent() {
    this.#retryNow();
  }

  subscribe(subscription) {
    this.#subscriptions.add(subscription);
    this.#clearTimer("idle");
    if (this.#isOpen) return this.#sendSubscribe(subscription);
    if (!this.#attempts) return;
    // What other streams found out counts for this one, too: the next attempt may be far away.
    subscription.failedAttempts = Math.max(subscription.failedAttempts, this.#attempts);
    this.#multiplexer.explainFailure(subscription);
  }

  unsubscribe(subscription) {
    clearTimeout(subscription.reopenTimer);
    this.#subscriptions.delete(subscription);
    if (this.#subscriptionsById.delete(subscription.id)) {
      this.#send({ type: "unsubscribe", id: subscription.id });
    }
    this.#closeWhenIdle();
  }

  /** Send the whole view: in a message with a path, an absent filter means no filter. */
  change({ id, request: { path, filter, fields } }) {
    const view = { filter: filter ?? undefined, fields: fields ?? undefined };
    this.#send({ type: "change", id, path, ...view });
  }

  credit({ id, hasBegun }, n) {
    if (hasBegun) this.#send({ type: "credit", id, n });
  }

  produce(member, message) {
    this.#clearTimer("idle");
    const { isSent = false } = this.#writes.get(message.id) ?? {};
    this.#writes.set(message.id, { member, message, isSent });
    this.#sendWrites();
  }

  renewToken(jwt) {
    if (jwt) this.jwt = jwt;
    this.#scheduleTokenRequest();
    if (jwt) this.#send({ type: "token", jwt });
    this.#retryNow();
  }

  /**
   * Subscribe again after a delay. What a draining server ended is subscribed at the next server,
   * over the next socket.
   */
  resubscribe(subscription, reason, delayMs) {
    this.#subscriptionsById.delete(subscription.id);
    if (reason === "drain") {
      this.#restartDelayMs ??= delayMs;
      const reconnect = () => this.#handleClose({ code: SERVICE_RESTART });
      return this.#setTimer("drained", DRAIN_TIMEOUT_MS, reconnect);
    }
    subscription.reopenTimer = setTimeout(() => this.subscribe(subscription), delayMs);
  }

  /** Ask a page for a new token, and another one the next time: any of them may be frozen. */
  requestToken() {
    const members = this.#listMembers().filter(({ jwt }) => jwt);
    if (!members.length) return;
    postToMembers([members[this.#tokenRequests++ % members.length]], { type: "token" });
  }

  #connect() {
    this.#clearTimer("retry");
    if (getExpiry(this.jwt) <= Date.now()) {
      this.requestToken();
      return this.#scheduleRetry();
    }
    const protocols = this.jwt ? ["gateway.v1", `bearer.${this.jwt}`] : ["gateway.v1"];
    const socket = (this.#socket = new this.#multiplexer.WebSocket(this.#url, protocols));
    const ifCurrent = (handle) => (event) => socket === this.#socket && handle(event);
    socket.onopen = ifCurrent(() => this.#handleOpen());
    socket.onmessage = ifCurrent(({ data }) => this.#handleMessage(data));
    socket.onclose = ifCurrent((event) => this.#handleClose(event));
    socket.onerror = () => {}; // onclose follows
    const isFirst = !this.#hasEverOpened && this.#attempts < 2;
    const timeoutMs = isFirst ? FIRST_OPEN_TIMEOUT_MS : OPEN_TIMEOUT_MS;
    this.#setTimer("silence", timeoutMs, () => this.#handleClose());
  }

  #handleOpen() {
    this.#isOpen = this.#hasEverOpened = true;
    this.#receivedAt = Date.now();
    for (const subscription of this.#subscriptions) this.#sendSubscribe(subscription);
    for (const write of this.#writes.values()) write.isSent = false;
    this.#sendWrites();
    this.#scheduleTokenRequest();
    this.#checkSilence();
  }

  #sendSubscribe(subscription) {
    clearTimeout(subscription.reopenTimer);
    const id = (subscription.id = `s${++this.#lastNumber}`);
    this.#subscriptionsById.set(id, subscription);
    const { position, request } = subscription;
    const { path, from, filter, fields, credit } = request;
    const start = position ? { lastEventId: position } : { from };
    const view = {
      path,
      filter: filter ?? undefined,
      fields: fields ?? undefined,
    };
    subscription.isAtPosition = true;
    this.#send({ type: "subscribe", id, ...view, ...start, credit });
  }

  #handleMessage(data) {
    const { id, ...message } = JSON.parse(data);
    this.#receivedAt = Date.now();
    this.#attempts = 0;
    const { type } = message;
    const subscription = this.#subscriptionsById.get(id);
    if (type === "records" && subscription?.request.texts) message.records = splitRecords(data);
    if (subscription) this.#multiplexer.handleMessage(subscription, message);
    else if (this.#writes.has(id)) {
      // A draining server takes no writes: the next socket sends this one again.
      if (message.code !== "draining") this.#settleWrite(id, message);
    } else if (type === "challenge") this.requestToken();
    else if (type === "error" && id === undefined) postToMembers(this.#listMembers(), message);
  }

  #sendWrites() {
    let capacity = MAX_WRITES_IN_FLIGHT;
    for (const write of this.#writes.values()) {
      if (!this.#isOpen || capacity-- === 0) return;
      if (!write.isSent) this.#send({ type: "produce", ...write.message });
      write.isSent = true;
    }
  }

  #settleWrite(id, { type, ...answer }) {
    const { member } = this.#writes.get(id);
    this.#writes.delete(id);
    this.#sendWrites();
    const outcome = type === "error" ? { error: answer } : answer;
    postToMembers([member], { type: "answer", id, ...outcome });
    this.#closeWhenIdle();
  }

  #handleClose({ code } = {}) {
    const wasOpen = this.#isOpen;
    this.#dropSocket();
    this.#clearTimer("drained");
    if (!wasOpen) this.#attempts++;
    // The token may have been refused: a browser does not show the status of a failed handshake.
    if (!wasOpen && this.jwt) this.requestToken();
    this.#subscriptionsById.clear();
    const subscriptions = [...this.#subscriptions];
    for (const subscription of subscriptions) {
      this.#multiplexer.handleDisconnect(subscription);
      this.#multiplexer.explainFailure(subscription);
    }
    if (!subscriptions.length) this.#explainPendingWrites();
    if (this.#attempts > 1 && !this.#hasEverOpened) {
      for (const subscription of subscriptions) {
        this.#multiplexer.switchTransport(subscription, true);
      }
    }
    if (!this.#subscriptions.size && !this.#writes.size) return this.close();
    this.#attempts = Math.max(this.#attempts, MIN_ATTEMPTS_BY_CLOSE_CODE[code] ?? 0);
    this.#scheduleRetry();
  }

  /** Tell the streams that only write why their writes are not answered. */
  #explainPendingWrites() {
    const [write] = this.#writes.values();
    if (!write || this.#attempts !== 2) return;
    const request = { base: this.#url.replace(/^ws/, "http").slice(0, -3), path: write.message.path };
    this.#multiplexer.explainWrites(this.#listMembers(), request, this.#attempts, this.jwt);
  }

  #dropSocket() {
    const socket = this.#socket;
    this.#socket = null;
    this.#isOpen = false;
    this.#clearTimer("silence");
    socket?.close();
  }

  #scheduleRetry() {
    const delayMs = this.#restartDelayMs ?? drawBackoff(this.#attempts);
    this.#restartDelayMs = undefined;
    this.#setTimer("retry", delayMs, () => this.#connect());
  }

  #retryNow() {
    if (this.#timers.retry) this.#connect();
  }

  #send(message) {
    if (this.#isOpen) this.#socket.send(JSON.stringify(message));
  }

  #closeWhenIdle() {
    if (this.#subscriptions.size || this.#writes.size) return;
    this.#setTimer("idle", IDLE_TIMEOUT_MS, () => this.close());
  }

  #listMembers() {
    const subscribers = [...this.#subscriptions].flatMap(({ members }) => [...members]);
    return [...subscribers, ...[...this.#writes.values()].map(({ member }) => member)];
  }

  /** Ask for a new token at four fifths of the old one's time, at most 30 s before it expires. */
  #scheduleTokenRequest() {
    const leftMs = getExpiry(this.jwt) - Date.now();
    if (leftMs === Infinity) return;
    const waitMs = Math.max(1_000, leftMs - Math.min(30_000, leftMs / 5));
    this.#setTimer("expiry", Math.min(waitMs, MAX_TIMER_MS), () => {
      this.requestToken();
      this.#scheduleTokenRequest();
    });
  }

  /**
   * Ping a silent server, and reconnect if it stays silent.
   *
   * A browser does not show the server's pings, and TCP may take a quarter of an hour to notice
   * that the other side is gone.
   */
  #checkSilence() {
    const silenceMs = Date.now() - this.#receivedAt;
    if (silenceMs >= 2 * PING_AFTER_MS) return this.#handleClose();
    if (silenceMs >= PING_AFTER_MS) this.#send({ type: "ping" });
    this.#setTimer("silence", PING_AFTER_MS / 3, () => this.#checkSilence());
  }

  /** Start a timer in place of the one of this name. */
  #setTimer(name, delayMs, callback) {
    clearTimeout(this.#timers[name]);
    this.#timers[name] = setTimeout(() => {
      delete this.#timers[name];
      callback();
    }, delayMs);
  }

  #clearTimer(name) {
    clearTimeout(this.#timers[name]);
    delete this.#timers[name];
  }
}
