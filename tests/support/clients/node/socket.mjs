// npm's ws as a program uses it: node socket.mjs path|multiplex URL [POSITION]
// Comes back after every close but 1000, with the last position that it processed. Prints a line
// of JSON for each message, opening and close. Takes lines of JSON: {"do": "pause"},
// {"do": "resume"}, {"do": "send", "text": TEXT, "times": N, "binary": BOOL}.
import { createInterface } from "node:readline";
import WebSocket from "ws";

const [way, given, first] = process.argv.slice(2);
const tell = (line) => process.stdout.write(JSON.stringify(line) + "\n");
let position = first ?? "";
let socket;

function address() {
  const url = new URL(given.replace(/^http/, "ws"));
  if (way === "multiplex") return new URL("/ws", url);
  if (position) url.searchParams.set("lastEventId", position);
  return url;
}

function open() {
  socket = new WebSocket(address());
  socket.on("open", () => {
    tell({ opened: true });
    if (way !== "multiplex") return;
    const { pathname, search } = new URL(given);
    const from = position ? { lastEventId: position } : {};
    socket.send(JSON.stringify({ type: "subscribe", id: "a", path: pathname + search, ...from }));
  });
  socket.on("message", (data, binary) => {
    if (binary) return tell({ error: "a binary message" });
    tell({ message: data.toString() });
    position = JSON.parse(data).position ?? position;
  });
  socket.on("error", (error) => tell({ error: String(error) }));
  socket.on("close", (code) => {
    tell({ closed: code });
    if (code !== 1000) setTimeout(open, 50);
  });
}

open();
for await (const line of createInterface({ input: process.stdin })) {
  const { do: what, text, times, binary } = JSON.parse(line);
  if (what === "send") socket.send(text.repeat(times), { binary });
  else socket[what]();
}
process.exit(); // the test is gone
