// The gateway's own module in Node: node module.mjs PATH-OF-GATEWAY.JS URL OPTIONS-AS-JSON
// Prints a line of JSON for each record, gap, state and error. Takes lines of JSON, each
// {"call": METHOD, "with": ARGUMENT}, and prints what comes of them; the method `twin` opens a
// second stream, with these options. The option `lifetime` has it give tokens, numbered from 1,
// that hold for so many seconds; with `readiness` it prints which partitions are ready, too.
import { createInterface } from "node:readline";
import { pathToFileURL } from "node:url";
import { EventSource } from "eventsource";
import WebSocket from "ws";

const [file, url, given] = process.argv.slice(2);
const { connect } = await import(pathToFileURL(file).href);

const { lifetime, readiness, ...options } = JSON.parse(given);
let tokens = 0;
const base64 = (claims) => Buffer.from(JSON.stringify(claims)).toString("base64url");
const token = () => {
  const claims = { sub: "ada", jti: ++tokens, exp: Date.now() / 1000 + lifetime };
  return `${base64({ alg: "none" })}.${base64(claims)}.x`;
};

const tell = (line) => process.stdout.write(JSON.stringify(line) + "\n");
const told = (event, twin) => (what, { position }) =>
  tell({ event, id: position ?? "", data: JSON.stringify(what), twin });

const stream = connect(url, {
  WebSocket,
  EventSource,
  token: lifetime && token,
  ...options,
  onrecord: told("message"),
  ondelete: told("delete"),
  ongap: told("gap"),
  onbegin: told("begin"),
  onready: readiness && told("ready"),
  onstate: (state, { reason }) => (state === "live" ? tell({ opened: true }) : tell({ state, reason })),
  onerror: (error) => tell({ error: `${error.code}: ${error.message}`, closed: stream.state === "closed" }),
});

stream.twin = (options) => {
  const callbacks = { onrecord: told("message", true), ongap: told("gap", true) };
  connect(url, { WebSocket, EventSource, ...options, ...callbacks });
};

for await (const line of createInterface({ input: process.stdin })) {
  const { call, with: argument } = JSON.parse(line);
  Promise.resolve(stream[call](argument)).then(
    (came) => tell({ came: came ?? null, of: argument }),
    (error) => tell({ came: `${error.code}: ${error.message}`, of: argument }),
  );
}
process.exit(); // the test is gone
