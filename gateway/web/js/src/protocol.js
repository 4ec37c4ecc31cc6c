/**
 * The messages between a Stream and the Multiplexer that owns its connection.
 *
 * An open page keeps the script it was loaded with, and a SharedWorker outlives an update of the
 * file. Pages and workers of different versions therefore speak to each other: when a message
 * changes, count PROTOCOL_NAME up, and the versions no longer meet.
 *
 * From a Stream, each with `stream`, the stream's id:
 *
 * - `open`: `{ attempt, request, position, jwt }`. Answers to an earlier `attempt` are dropped. With
 *   `request.texts` the records of an answer are JSON texts, which the Stream parses.
 * - `change`: `{ attempt, view }`, `credit`: `{ attempt, n }`
 * - `produce`: `{ base, message, jwt }`
 * - `token`: `{ jwt }`, the answer to `token`
 * - `leave`: the stream is closed
 *
 * From a Link: `bye`, when its page is left.
 *
 * To Streams, as `{ to: [[stream, attempt], ...], message }`: the gateway's messages, and
 *
 * - `lost`: `{ reason }`. The connection was lost; the Multiplexer reconnects.
 * - `trouble`: `{ reason, attempts, hint }`. The subscription does not come about; the Multiplexer
 *   goes on trying.
 * - `closed`: `{ reason, error }`. The subscription is over.
 * - `answer`: `{ id, ... }`, the outcome of `produce`
 * - `token`: a new token is needed
 *
 * A WorkerLink and its worker first exchange `{ hello }`, each with the name of a lock that the
 * sender holds as long as it lives. On the BroadcastChannel, `{ who }` asks for the leading tab,
 * `{ leader }` names it, and `for`, `tab` and `from` address the messages above.
 *
 * @module
 */

/** The name of the worker and of the channel, and the prefix of all locks. */
export const PROTOCOL_NAME = "gateway.js/3";

/** Milliseconds for a worker to begin, or for the leading tab to answer. */
export const ANSWER_TIMEOUT_MS = 10_000;
