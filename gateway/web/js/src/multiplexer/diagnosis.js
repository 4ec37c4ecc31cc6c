/**
 * Find out why a subscription does not come about. A browser tells a script neither the status of
 * a failed WebSocket or EventSource, nor whether a server is dead or only refuses the page.
 *
 * Two requests tell: that of the stream once more, by `fetch`, and where that fails too, one in
 * the mode `no-cors`, which succeeds whenever a server responds at all. It asks for this module,
 * because browsers hide other media types from other origins (opaque response blocking), and
 * because every gateway serves it, so that no endpoint has to be open to all origins.
 *
 * @module
 */

const RESPONSE_TIMEOUT_MS = 5_000; // for the head of a response
const TRANSIENT_STATUSES = [408, 425, 429]; // of 4xx; all of 5xx are
const PROXY_STATUSES = [502, 503, 504]; // of a proxy, unless the gateway gives a detail

/**
 * The response to the request of a stream, without its body.
 *
 * @typedef {object} Answer
 * @property {number} [status] Absent if no response can be read.
 * @property {string} [mediaType]
 * @property {{ detail?: string, topic?: string }} [problem] Of a status from 400 on.
 * @property {boolean} [isLate] There was none in time.
 * @property {string} [failure] What Node says of a connection that failed.
 */

/**
 * Ask for a stream by `fetch`, and give it up after its head.
 *
 * @param {string} url
 * @param {{ credentials?: boolean, jwt?: string }} options
 * @returns {Promise<Answer>}
 */
export async function fetchAnswer(url, { credentials, jwt } = {}) {
  const headers = { Accept: "text/event-stream" };
  if (jwt) headers.Authorization = `Bearer ${jwt}`;
  return fetchHead(url, { headers, credentials: credentials ? "include" : "same-origin" });
}

/** @returns {Promise<Answer>} */
async function fetchHead(url, options) {
  const control = new AbortController();
  const timer = setTimeout(() => control.abort(), RESPONSE_TIMEOUT_MS);
  try {
    const response = await fetch(url, { ...options, cache: "no-store", signal: control.signal });
    const { status } = response;
    const mediaType = response.headers.get("content-type") ?? "";
    const problem = status < 400 ? {} : await response.json().catch(() => ({}));
    return { status, mediaType, problem: problem ?? {} };
  } catch (error) {
    return { isLate: control.signal.aborted, failure: error?.cause?.code };
  } finally {
    clearTimeout(timer);
    control.abort();
  }
}

/**
 * Return the error of a request that would be refused again.
 *
 * @param {Answer} answer
 * @param {string} position Which the request resumed from.
 * @returns {{ code: string, message: string, status: number } | null} null if the request is to be
 *   tried again.
 */
export function getRefusal({ status, problem }, position) {
  if (!(status >= 400 && status < 500) || TRANSIENT_STATUSES.includes(status)) return null;
  const { detail = `HTTP status ${status}`, topic } = problem;
  let code = "bad-request";
  if (status === 401) code = "unauthorized";
  else if (status === 403) code = "forbidden";
  else if (status === 404) code = topic ? "unknown-topic" : "unknown-path";
  // A 400 without our title may be of a proxy that refuses so long a position.
  else if (status === 400 && position && problem.title !== "Bad request") code = "position-refused";
  return { code, message: detail, status };
}

/**
 * Return why a subscription does not come about, and what its developer can do.
 *
 * @param {object} request Of the subscription.
 * @param {object} situation
 * @param {Answer} [situation.answer] To the request of the stream, if it was asked for already.
 * @param {string} [situation.jwt]
 * @param {"WebSocket" | "EventSource"} situation.transport Which failed.
 * @param {boolean} situation.hasFallback The other transport is tried next.
 * @param {boolean} [situation.isSilent] It has not failed: nothing arrives.
 * @returns {Promise<{ reason: string, hint: string } | null>} null if nothing seems to be wrong.
 */
export async function diagnose(request, { answer, jwt, transport, hasFallback, isSilent }) {
  const url = request.base + request.path;
  answer ??= await fetchAnswer(url, { credentials: request.credentials, jwt });
  const { status, mediaType, problem, isLate, failure } = answer;
  const refused = (hint) => ({ reason: "refused", hint });
  const buffering = {
    reason: "proxy-buffering",
    hint: `${request.base} responds, but no event of ${url} arrives: turn buffering off in the ` +
      "proxy in between, or wait if partitionReadyTimeout of its route is longer than 15 s",
  };
  if (status >= 400) {
    const guess = PROXY_STATUSES.includes(status)
      ? "a proxy does not reach the gateway; see whether the gateway runs, and the proxy's target"
      : `${request.base} seems to be another server than the gateway; ` +
        "give the gateway's address as `base`, or let this server pass the path on to it";
    return refused(`${url} responds with status ${status}: ${problem.detail ?? guess}`);
  }
  if (status && !mediaType.startsWith("text/event-stream")) {
    return refused(`${url} responds with ${mediaType || "no media type"} instead of a stream of ` +
      "events: this is another server, or a proxy that does not pass the path on to the gateway");
  }
  if (status && isSilent) return buffering;
  if (status && (hasFallback || transport === "EventSource")) return null;
  if (status) {
    return refused(`${url} responds to HTTP, but no WebSocket to ${request.base}/ws opens: a ` +
      "proxy in between must pass Upgrade on, and a page of another origin whose browser sends " +
      "cookies needs allow.credentials in access-control");
  }
  // An absent `location` is that of Node, whose requests have no origin.
  const page = globalThis.location?.origin;
  const isForeign = Boolean(page) && page !== new URL(request.base).origin;
  const probe = { method: "HEAD", mode: "no-cors", credentials: "omit" };
  const isAlive = (await fetchHead(`${request.base}/gateway.js`, probe)).status !== undefined;
  if (!isAlive) return { reason: "unreachable", hint: explainUnreachable(request.base, failure) };
  if (isLate) return buffering;
  if (isForeign) {
    return {
      reason: "foreign-origin",
      hint: `${url} responds, but not to pages of ${page}: allow this origin in ` +
        "listen.access-control (or `gateway run --origin`), or in the route's access-control, or " +
        "let the page's own server pass the path on to the gateway",
    };
  }
  return refused(`${url} redirects to another server, as one that asks for a login does`);
}

/** Return what may be wrong with an address at which no server responds. */
function explainUnreachable(base, failure) {
  const { protocol, host } = new URL(base);
  const problem = `${host} cannot be reached${failure ? ` (${failure})` : ""}`;
  if (globalThis.navigator?.onLine === false) return `${problem}: this device is offline`;
  if (protocol === "http:" && globalThis.location?.protocol === "https:") {
    return `${problem}: a page of https may not open http; give an address of https`;
  }
  if (protocol === "https:" && globalThis.location) {
    return `${problem}: open ${base}/gateway.js in a tab; if the browser warns of the ` +
      "certificate, it is not trusted; else the address is wrong, or the gateway does not run";
  }
  if (/CERT|SELF_SIGNED/.test(failure)) {
    return `${problem}: its certificate is not trusted; name its CA in NODE_EXTRA_CA_CERTS`;
  }
  return `${problem}: check the address, and whether the gateway runs`;
}
