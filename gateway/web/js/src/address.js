/**
 * Return which server a stream is at, and its path there.
 *
 * @param {string} path Of a route, or a whole URL (http, https, ws or wss).
 * @param {string} [base] The gateway's address, if `path` is not a whole URL. In a page it
 *   may be relative, and the default is the root of the page's origin.
 * @returns {{ base: string, path: string }} `base` has no slash at its end.
 * @throws {TypeError} Outside a page, if the server is not known.
 */
export function resolveAddress(path, base) {
  if (/^(http|ws)s?:/i.test(path)) {
    const url = new URL(path.replace(/^ws/i, "http"));
    return { base: url.origin, path: url.pathname + url.search };
  }
  const page = globalThis.location?.href;
  if (!base && !page) throw new TypeError("outside a page, give a whole URL, or the option base");
  const root = new URL(base ?? "/", page).href.replace(/^ws/i, "http");
  return { base: root.replace(/\/$/, ""), path: `/${path.replace(/^\/+/, "")}` };
}
