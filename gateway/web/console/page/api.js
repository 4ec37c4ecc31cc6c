/**
 * Requests to the admin port that this page is from.
 *
 * `fetch` reads the events, too: EventSource sends no token and no header of ours.
 */

const BASE = new URL("../", import.meta.url);
const CREDENTIALS_KEY = "gateway-console-credentials";
const IDLE_TIMEOUT_MS = 10_000; // the gateway sends figures every second
const RECONNECT_MS = [250, 5_000]; // at first, and at most

export class ApiError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

/** The value of Authorization, for as long as this tab is open. */
export const credentials = {
  get: () => sessionStorage.getItem(CREDENTIALS_KEY) ?? "",
  clear: () => sessionStorage.removeItem(CREDENTIALS_KEY),
  set(name, secret) {
    const bytes = new TextEncoder().encode(`${name}:${secret}`);
    const value = name ? `Basic ${btoa(String.fromCharCode(...bytes))}` : `Bearer ${secret}`;
    sessionStorage.setItem(CREDENTIALS_KEY, value);
  },
};

/** The response of a request that succeeded. Throws ApiError with what the gateway said. */
export async function request(path, { method = "GET", body, headers = {}, signal } = {}) {
  const sent = { "Gateway-Console": "1", ...headers };
  if (credentials.get()) sent.Authorization = credentials.get();
  if (body !== undefined) sent["Content-Type"] = "application/json";
  const response = await fetch(new URL(path, BASE), {
    method,
    headers: sent,
    body: body === undefined ? undefined : JSON.stringify(body),
    cache: "no-store",
    signal,
  });
  if (!response.ok) throw new ApiError(response.status, await readProblem(response));
  return response;
}

export async function requestJson(path, options) {
  const response = await request(path, options);
  return response.status === 204 ? null : response.json();
}

/** What to add to the sentence about an action; nothing if all workers answered. */
export function describeMissing(missing = []) {
  return missing.length ? `; worker ${missing.join(", ")} did not answer` : "";
}

async function readProblem(response) {
  try {
    const problem = await response.json();
    // The sidecar has a message and, if there is more to say, a description.
    const status = [...new Set([problem.message, problem.description])].filter(Boolean);
    return (problem.problems ?? (problem.detail ? [problem.detail] : status)).join("; ") || problem.title;
  } catch {
    return `status ${response.status}`;
  }
}

/** Calls `onEvent(name, data, id)` for each event of a response (WHATWG HTML 9.2.6). */
export async function readEvents(response, onEvent, { onChunk } = {}) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "", name = "", data = [], id = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      await onChunk?.();
      const lines = (rest + value).split(/\r\n|\n|\r(?!$)/);
      rest = lines.pop();
      for (const line of lines) {
        if (line === "") {
          if (data.length) await onEvent(name || "message", data.join("\n"), id);
          name = "";
          data = [];
          continue;
        }
        const [, field, content] = /^([^:]*):? ?(.*)$/s.exec(line);
        if (field === "event") name = content;
        else if (field === "data") data.push(content);
        else if (field === "id") id = content;
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

/**
 * Keeps a stream of events open until it is refused.
 *
 * @param onState called with "live", "connecting" or "refused" and an error.
 */
export async function follow(path, onEvent, onState) {
  let delay = RECONNECT_MS[0];
  for (;;) {
    const controller = new AbortController();
    let timer;
    const restart = () => {
      clearTimeout(timer);
      timer = setTimeout(() => controller.abort(), IDLE_TIMEOUT_MS);
    };
    try {
      restart();
      const response = await request(path, { signal: controller.signal });
      onState("live");
      delay = RECONNECT_MS[0];
      await readEvents(response, (name, data) => onEvent(name, JSON.parse(data)), { onChunk: restart });
    } catch (error) {
      if (error instanceof ApiError && [401, 403].includes(error.status)) {
        onState("refused", error);
        return;
      }
    } finally {
      clearTimeout(timer);
    }
    onState("connecting");
    await new Promise((resolve) => setTimeout(resolve, delay * (0.5 + Math.random() / 2)));
    delay = Math.min(2 * delay, RECONNECT_MS[1]);
  }
}
