import { getIdentity } from "../jwt.js";
import { createUuid } from "../uuid.js";

/**
 * A subscription at the gateway, and the streams that get its messages. All of its members are at
 * its position.
 */
export class Subscription {
  /** @type {Set<import("./members.js").Member>} */
  members = new Set();
  transport = null; // a WebSocketTransport, or an EventSourceTransport of its own
  id = null; // on the WebSocket
  reopenTimer = null; // of a WebSocketTransport
  hasBegun = false;
  isAtPosition = true; // nothing has arrived since the position
  recentMessages = []; // kept while another subscription has the same view
  attempts = 0; // that failed since the last begin, by errors of the gateway or of an EventSource
  failedAttempts = 0; // in a row that did not lead to a begin, for whatever reason
  isDiagnosed = false; // why is being found out
  hasTrouble = false; // its streams were told why
  previousRequest = null; // while a change of the view is not confirmed
  hasNewView = false; // the next begin is that of a change, for the members

  /**
   * @param {object} request `base`, `path`, `filter`, `fields`, `from`, `credit`, `credentials`,
   *   `transport`, `texts`: whether records stay texts, and `token`: whether there is one.
   * @param {string | null} position
   * @param {string | undefined} jwt
   */
  constructor(request, position, jwt) {
    this.position = position ?? "";
    this.jwt = jwt;
    // Credit and the end at `until` are of one stream: nobody else can share such a subscription.
    const isExclusive = request.credit !== undefined || /[?&]until=/.test(request.path);
    this.scope = [getIdentity(jwt), isExclusive ? createUuid() : ""];
    this.setRequest(request);
  }

  /** Set the view. Subscriptions of equal `viewKey` get the same messages. */
  setRequest(request) {
    const { base, path, filter, fields, texts } = request;
    this.request = request;
    this.viewKey = JSON.stringify([this.scope, base, path, filter, fields, texts]);
  }

  /** Whether both transports will do, WebSocket and EventSource. */
  get allowsEitherTransport() {
    const { transport, token, credit } = this.request;
    return transport === "auto" && !token && credit === undefined;
  }
}
