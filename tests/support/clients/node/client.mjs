// One SSE client of npm: node client.mjs KIND URL [HEADERS as JSON]
// Prints a line of JSON for each event, opening and error.
import { createRequire } from "node:module";

const require = createRequire(import.meta.url);
const [kind, url, given] = process.argv.slice(2);
const headers = JSON.parse(given ?? "{}");
const NAMES = ["begin", "ready", "position", "gap", "delete", "snapshot-end", "challenge", "end"];

const tell = (line) => process.stdout.write(JSON.stringify(line) + "\n");
const told = (e) => tell({ event: e.type, id: e.lastEventId, data: e.data });

async function eventsource() {
  const { EventSource } = await import("eventsource");
  // Given headers first: from the second connection on its own Last-Event-ID counts.
  const fetching = (input, init) => fetch(input, { ...init, headers: { ...headers, ...init.headers } });
  const source = new EventSource(url, { fetch: fetching });
  source.onopen = () => tell({ opened: true });
  source.onmessage = told;
  source.onerror = (e) => tell({ error: `${e.code ?? ""} ${e.message ?? ""}`, closed: source.readyState === 2 });
  for (const name of NAMES) source.addEventListener(name, told);
  // A dispatched event named error has data; a failure of the connection has none.
  source.addEventListener("error", (e) => e.data !== undefined && told(e));
}

function fetchEventSource() {
  globalThis.window = globalThis; // it is written for browsers
  globalThis.document = { hidden: false, addEventListener() {}, removeEventListener() {} };
  const { fetchEventSource: open } = require("@microsoft/fetch-event-source");
  class Fatal extends Error {}
  let last = headers["last-event-id"] ?? "";
  return open(url, {
    headers,
    openWhenHidden: true,
    onopen: async (response) => {
      if (!response.ok) throw new Fatal(`status ${response.status}`);
      tell({ opened: true });
    },
    // It hands out blocks without data, too, and no id but the block's own.
    onmessage: (e) => {
      last = e.id || last;
      if (e.data || e.event) tell({ event: e.event || "message", id: last, data: e.data });
    },
    // Its documented way to come back after the server closed: throw what is not fatal.
    onclose: () => {
      throw new Error("closed by the server");
    },
    onerror: (e) => {
      tell({ error: String(e), closed: e instanceof Fatal });
      if (e instanceof Fatal) throw e;
    },
  }).catch(() => {});
}

// Alive until the test is gone: eventsource's timer to reconnect does not keep Node running.
process.stdin.on("end", () => process.exit()).resume();

await (kind === "eventsource" ? eventsource() : fetchEventSource());
