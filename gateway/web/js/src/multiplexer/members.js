/**
 * A stream of some page, as the Multiplexer knows it.
 *
 * @typedef {object} Member
 * @property {string} stream The stream's id.
 * @property {number} [attempt] Which of the stream's subscriptions messages are for.
 * @property {{ post: (message: object) => void }} port The way to its page. One port may be the
 *   way to many pages, which then pick what is theirs.
 * @property {string} [tab] The name of the lock that its page holds.
 * @property {string} [jwt]
 * @property {import("./subscription.js").Subscription} [subscription]
 */

/**
 * Send one message to members, once for each port.
 *
 * @param {Iterable<Member>} members
 * @param {object} message
 */
export function postToMembers(members, message) {
  const receiversByPort = new Map();
  for (const { port, stream, attempt } of members) {
    if (!receiversByPort.has(port)) receiversByPort.set(port, []);
    receiversByPort.get(port).push([stream, attempt]);
  }
  for (const [port, to] of receiversByPort) port.post({ to, message });
}
