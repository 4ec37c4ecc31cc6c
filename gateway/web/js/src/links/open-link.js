import { ANSWER_TIMEOUT_MS } from "../protocol.js";
import { ChannelLink } from "./channel-link.js";
import { LocalLink } from "./local-link.js";
import { WorkerLink } from "./worker-link.js";

/** The links of this page, or promises of them: one of each kind and worker. */
const links = new Map();

/** Return the link of this key, and create it if it is the first. */
function getOrCreate(key, create) {
  if (!links.has(key)) links.set(key, create());
  return links.get(key);
}

/**
 * Return the link for a stream's options (`share`, `worker`, `WebSocket`, `EventSource`).
 *
 * `import.meta.url` is that of the bundle, the only form in which a page loads this module.
 *
 * @returns {Promise<import("./link.js").Link>} Rejects if the link that `share` names cannot be.
 */
export async function openLink({
  share = true,
  worker = import.meta.url,
  WebSocket,
  EventSource,
}) {
  const createLocal = () => new LocalLink({ WebSocket, EventSource });
  const openLocal = () => getOrCreate(WebSocket ?? EventSource ?? "page", createLocal);
  const openChannel = () => getOrCreate("channel", () => new ChannelLink().join());
  const openWorker = (timeoutMs) =>
    getOrCreate(`worker ${worker}`, () => new WorkerLink(worker).join(timeoutMs));

  if (share === false) return createLocal();
  if (share === "worker") return openWorker();
  if (share === "channel") return openChannel();
  const isPage = typeof document !== "undefined" && !WebSocket && !EventSource;
  if (share === "page" || !isPage) return openLocal();
  const openWithoutWorker =
    navigator.locks && globalThis.BroadcastChannel ? openChannel : openLocal;
  // Only a script of the page's own origin can be its worker.
  const isSameOrigin = new URL(worker, location.href).origin === location.origin;
  if (!globalThis.SharedWorker || !isSameOrigin) return openWithoutWorker();
  return openWorker(ANSWER_TIMEOUT_MS).catch(openWithoutWorker);
}
