import { drawBackoff } from "../backoff.js";
import { getExpiry, getIdentity } from "../jwt.js";
import { whenReleased } from "../locks.js";
import { diagnose } from "./diagnosis.js";
import { EventSourceTransport } from "./event-source-transport.js";
import { postToMembers } from "./members.js";
import { Subscription } from "./subscription.js";
import { WebSocketTransport } from "./web-socket-transport.js";

const FINAL_END_REASONS = new Set(["until", "unsubscribed", "offset-out-of-range"]);
const TRANSIENT_ERROR_CODES = new Set([
  "kafka-unavailable", "rate-limited", "too-many-subscriptions", "internal-error",
]);
const MAX_UNAUTHORIZED_ATTEMPTS = 3;
const MAX_RECENT_MESSAGES = 64; // of a subscription, for another that joins it from behind

/**
 * The connections and subscriptions of all streams that share them.
 *
 * A transport (WebSocketTransport, EventSourceTransport) carries subscriptions. It provides
 * `subscribe`, `unsubscribe` and `resubscribe`, and for a WebSocket also `change`, `credit`,
 * `produce`, `renewToken` and `requestToken`. It calls `handleMessage`, `handleDisconnect`,
 * `explainFailure` and `switchTransport` here.
 */
export class Multiplexer {
  /** @type {Map<string, import("./members.js").Member>} */
  #members = new Map(); // by the id of the stream
  #subscriptions = new Set();
  #sockets = new Map(); // WebSocketTransports, by server and identity
  #tabs = new Set(); // names of locks that pages hold
  #blockedServers = new Set(); // servers to which no WebSocket came through

  constructor({ WebSocket, EventSource } = {}) {
    this.WebSocket = WebSocket ?? globalThis.WebSocket;
    this.EventSource = EventSource ?? globalThis.EventSource;
  }

  close() {
    for (const member of [...this.#members.values()]) this.#removeMember(member);
    for (const socket of [...this.#sockets.values()]) socket.close();
  }

  /**
   * Handle a message of a stream or of its link; see protocol.js.
   *
   * @param {{ post: (message: object) => void }} port The way back.
   * @param {string | null} tab The name of the lock that the page holds; null for this page.
   * @param {object} message
   */
  receive(port, tab, { type, stream, attempt, ...content }) {
    if (tab && !this.#tabs.has(tab)) {
      this.#tabs.add(tab);
      whenReleased(tab, () => this.removeTab(tab));
    }
    const member = this.#members.get(stream);
    const { jwt } = content;
    if (type === "open") this.#openStream({ stream, attempt, port, tab, jwt }, content);
    else if (type === "produce") this.#produce({ stream, port, jwt }, content);
    else if (type === "bye") this.removeTab(tab);
    else if (type === "leave" && member) this.#removeMember(member);
    else if (type === "token" && member) member.subscription.transport.renewToken?.(jwt);
    else if (member?.attempt !== attempt) return;
    else if (type === "change") this.#changeView(member, content.view);
    else if (type === "credit") {
      member.subscription.transport.credit(member.subscription, content.n);
    }
  }

  /** Remove the streams of a page that has ended, or is about to. */
  removeTab(tab) {
    this.#tabs.delete(tab);
    for (const member of [...this.#members.values()]) {
      if (member.tab === tab) this.#removeMember(member);
    }
  }

  #openStream(member, { request, position }) {
    const earlier = this.#members.get(member.stream);
    if (earlier) this.#removeMember(earlier);
    this.#subscribe(member, new Subscription(request, position, member.jwt));
  }

  /** Every stream begins with its own subscription, from its own position; `#merge` follows. */
  #subscribe(member, subscription) {
    this.#members.set(member.stream, member);
    this.#subscriptions.add(subscription);
    subscription.members.add(member);
    member.subscription = subscription;
    this.#openTransport(subscription);
  }

  #openTransport(subscription) {
    const { jwt, request } = subscription;
    const isBlocked =
      this.EventSource && (!this.WebSocket || this.#blockedServers.has(request.base));
    const usesEventSource =
      request.transport === "eventsource" || (subscription.allowsEitherTransport && isBlocked);
    const needed = usesEventSource ? "EventSource" : "WebSocket";
    if (!this[needed]) {
      const error = { code: "unsupported", message: `no ${needed} here; give one as an option` };
      return queueMicrotask(() => this.#closeSubscription(subscription, { error }));
    }
    subscription.transport = usesEventSource
      ? new EventSourceTransport(this, subscription)
      : this.#getSocket(request.base, jwt);
    subscription.transport.subscribe(subscription);
  }

  /**
   * Try the other transport for a subscription that could not be opened.
   *
   * @param {Subscription} subscription
   * @param {boolean} isBlocked Whether WebSockets do not come through to the server.
   * @returns {boolean} False if there is no other transport for it.
   */
  switchTransport(subscription, isBlocked) {
    if (!subscription.allowsEitherTransport || !this.WebSocket || !this.EventSource) return false;
    this.#blockedServers[isBlocked ? "add" : "delete"](subscription.request.base);
    subscription.transport.unsubscribe(subscription);
    this.#openTransport(subscription);
    return true;
  }

  /** Return the socket of a server and identity. It keeps the token that expires last. */
  #getSocket(base, jwt) {
    const key = `${base} ${getIdentity(jwt)}`;
    const existing = this.#sockets.get(key);
    if (existing && jwt && getExpiry(jwt) > getExpiry(existing.jwt)) existing.renewToken(jwt);
    if (existing) return existing;
    const socket = new WebSocketTransport(this, base, jwt, () => this.#sockets.delete(key));
    this.#sockets.set(key, socket);
    return socket;
  }

  #produce(member, { base, message, jwt }) {
    if (this.WebSocket) return this.#getSocket(base, jwt).produce(member, message);
    const error = { code: "unsupported", message: "to produce takes a WebSocket; give one" };
    postToMembers([member], { type: "answer", id: message.id, error });
  }

  #removeMember(member) {
    const { subscription } = member;
    this.#members.delete(member.stream);
    subscription.members.delete(member);
    if (!subscription.members.size) this.#removeSubscription(subscription);
  }

  #removeSubscription(subscription) {
    this.#subscriptions.delete(subscription);
    subscription.transport?.unsubscribe(subscription);
  }

  /**
   * Change the view of a stream: in place if it is alone on its subscription and the transport can
   * do that, else by a new subscription.
   */
  #changeView(member, view) {
    const { subscription } = member;
    const { request, position, hasBegun, hasNewView, transport, members } = subscription;
    const newRequest = { ...request, ...view };
    if (members.size === 1 && transport?.change && hasBegun && !subscription.previousRequest) {
      subscription.previousRequest = request;
      subscription.setRequest(newRequest);
      return transport.change(subscription);
    }
    this.#removeMember(member);
    const replacement = new Subscription(newRequest, position, subscription.jwt);
    replacement.hasNewView = hasBegun || hasNewView;
    this.#subscribe(member, replacement);
  }

  /** Handle a message that a transport received for a subscription. */
  handleMessage(subscription, message) {
    const { type, position } = message;
    if (!this.#subscriptions.has(subscription)) return;
    if (type === "end") return this.#handleEnd(subscription, message);
    if (type === "error" && message.partition === undefined) {
      if (this.#handleError(subscription, message)) return;
    }
    if (type === "begin") this.#handleBegin(subscription, message);
    if (position) Object.assign(subscription, { position, isAtPosition: true });
    else if (["records", "delete", "gap"].includes(type)) subscription.isAtPosition = false;
    postToMembers(subscription.members, message);
    const equals = [...this.#subscriptions].filter((other) => {
      return other !== subscription && other.hasBegun && other.viewKey === subscription.viewKey;
    });
    const { recentMessages } = subscription;
    if (type === "begin" || !equals.length) subscription.recentMessages = [];
    else if (recentMessages.push(message) > MAX_RECENT_MESSAGES) recentMessages.shift();
    if (position) this.#merge(subscription, equals);
  }

  #handleBegin(subscription, message) {
    subscription.hasBegun = true;
    Object.assign(subscription, { attempts: 0, failedAttempts: 0, hasTrouble: false });
    if (message.changed) subscription.previousRequest = null;
    else if (subscription.hasNewView) message.changed = true;
    subscription.hasNewView = false;
  }

  /**
   * Merge a subscription into another of the same view that is, or recently was, at its position.
   * Its members first get the messages that the other has received since then.
   *
   * To compare only current positions would not do: under load they are never equal.
   */
  #merge(subscription, equals) {
    for (const other of equals) {
      if (!subscription.hasBegun || subscription.previousRequest || other.previousRequest) continue;
      const { position, recentMessages } = other;
      let at = recentMessages.findLastIndex(
        (message) => message.position === subscription.position,
      );
      if (at < 0 && other.isAtPosition && position === subscription.position) {
        at = recentMessages.length;
      }
      if (at < 0) continue;
      for (const message of recentMessages.slice(at + 1)) {
        postToMembers(subscription.members, message);
      }
      for (const member of subscription.members) {
        member.subscription = other;
        other.members.add(member);
      }
      subscription.members.clear();
      return this.#removeSubscription(subscription);
    }
  }

  /** Handle the loss of a subscription's connection. The next one begins with the newest view. */
  handleDisconnect(subscription, reason) {
    if (!this.#subscriptions.has(subscription)) return;
    subscription.failedAttempts = subscription.hasBegun ? 0 : subscription.failedAttempts + 1;
    Object.assign(subscription, { hasBegun: false, previousRequest: null });
    postToMembers(subscription.members, { type: "lost", reason });
  }

  /**
   * Tell the streams of a subscription why it does not come about.
   *
   * They are told at the second failed attempt, and then at the fourth, the eighth and so on:
   * what a thousand clients ask of a server that restarts must not double for that.
   *
   * @param {Subscription} subscription
   * @param {{ answer?: import("./diagnosis.js").Answer, isSilent?: boolean, known?: object }}
   *   situation See `diagnose`. `known` is the diagnosis, if there is nothing to find out.
   */
  async explainFailure(subscription, { known, ...situation } = {}) {
    const { failedAttempts, hasTrouble, request, jwt } = subscription;
    const isPowerOfTwo = (failedAttempts & (failedAttempts - 1)) === 0;
    const isDue = failedAttempts > 1 && (!hasTrouble || isPowerOfTwo);
    if ((!isDue && !situation.isSilent) || subscription.isDiagnosed) return;
    subscription.isDiagnosed = true;
    const isEventSource = subscription.transport instanceof EventSourceTransport;
    const trouble = known ?? (await diagnose(request, {
      transport: isEventSource ? "EventSource" : "WebSocket",
      hasFallback: subscription.allowsEitherTransport && Boolean(this.EventSource),
      jwt: subscription.transport?.jwt ?? jwt,
      ...situation,
    }));
    subscription.isDiagnosed = false;
    if (!trouble || subscription.hasBegun || !this.#subscriptions.has(subscription)) return;
    subscription.hasTrouble = true;
    const attempts = Math.max(1, failedAttempts);
    postToMembers(subscription.members, { type: "trouble", attempts, ...trouble });
  }

  /** Tell streams why their writes are not answered; see `explainFailure`. */
  async explainWrites(members, request, attempts, jwt) {
    const trouble = await diagnose(request, { transport: "WebSocket", hasFallback: false, jwt });
    if (trouble) postToMembers(members, { type: "trouble", attempts, ...trouble });
  }

  #handleEnd(subscription, { reason, position, retry }) {
    if (position) subscription.position = position;
    if (FINAL_END_REASONS.has(reason)) {
      return this.#closeSubscription(subscription, { reason, position });
    }
    this.handleDisconnect(subscription, reason);
    const hint = `the gateway ended the stream before it began: ${reason}`;
    this.explainFailure(subscription, { known: { reason: "refused", hint } });
    const delayMs = retry ?? drawBackoff(++subscription.attempts);
    subscription.transport.resubscribe(subscription, reason, delayMs);
  }

  /** Handle an error about a whole subscription. Return false if it is for the members to see. */
  #handleError(subscription, error) {
    const { hasBegun, previousRequest, position, transport, jwt } = subscription;
    const resubscribe = () => {
      const delayMs = drawBackoff(++subscription.attempts);
      transport.resubscribe(subscription, error.code, delayMs);
    };
    if (hasBegun && previousRequest) {
      // A change was refused, and the gateway may have ended the subscription over that. Begin it
      // again with the earlier view.
      subscription.setRequest(previousRequest);
      subscription.previousRequest = null;
      postToMembers(subscription.members, error);
      transport.unsubscribe(subscription);
      transport.subscribe(subscription);
    } else if (error.code === "unknown-subscription") {
      if (hasBegun) resubscribe(); // else our message crossed an `end`, which was handled
    } else if (error.code === "position-refused" && position) {
      // Report the gap that an EventSource would get from the gateway.
      const nowhere = { topic: null, partition: null, from: null, to: null };
      subscription.position = "";
      const gap = { type: "gap", ...nowhere, reason: error.code, position: "" };
      postToMembers(subscription.members, gap);
      transport.resubscribe(subscription, error.code, 0);
    } else if (TRANSIENT_ERROR_CODES.has(error.code)) {
      postToMembers(subscription.members, error);
      this.handleDisconnect(subscription, error.code);
      this.explainFailure(subscription, { known: { reason: "refused", hint: error.message } });
      resubscribe();
    } else if (
      error.code === "unauthorized" && jwt && subscription.attempts < MAX_UNAUTHORIZED_ATTEMPTS
    ) {
      transport.requestToken();
      resubscribe();
    } else if (hasBegun) return false;
    else this.#closeSubscription(subscription, { error });
    return true;
  }

  #closeSubscription(subscription, content) {
    postToMembers(subscription.members, { type: "closed", ...content });
    for (const member of [...subscription.members]) this.#removeMember(member);
  }
}
