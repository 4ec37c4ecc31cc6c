// The gateway's own module in Node: node module.mjs PATH-OF-GATEWAY.JS URL OPTIONS-AS-JSON
// Prints a line of JSON for each record, gap, state and error. Reads lines of JSON, each
// {"call": METHOD, "with": ARGUMENT}, and prints {"result", "argument"} for each; the method `twin`
// opens a second stream with these options. What the module says in the console is printed, too. With the option `lifetime` it presents tokens, numbered
// from 1, that expire after so many seconds. With `readiness` it also prints ready partitions,
// with `texts` the texts of records.
import { createInterface } from "node:readline";
import { pathToFileURL } from "node:url";
import { EventSource } from "eventsource";
import WebSocket from "ws";

const [file, url, optionsText] = process.argv.slice(2);
const { connect } = await import(pathToFileURL(file).href);

const { lifetime, readiness, texts, ...options } = JSON.parse(optionsText);
let tokenCount = 0;
const base64 = (claims) => Buffer.from(JSON.stringify(claims)).toString("base64url");
const token = () => {
  const claims = { sub: "ada", jti: ++tokenCount, exp: Date.now() / 1000 + lifetime };
  return `${base64({ alg: "none" })}.${base64(claims)}.x`;
};

const print = (line) => process.stdout.write(JSON.stringify(line) + "\n");
const printAs = (event, twin) => (payload, { position }) =>
  print({ event, id: position ?? "", data: JSON.stringify(payload), twin });

console.warn = (warning) => print({ warning });

const stream = connect(url, {
  WebSocket,
  EventSource,
  token: lifetime && token,
  parse: texts && ((text) => ({ text })),
  ...options,
  onrecord: printAs("message"),
  ondelete: printAs("delete"),
  ongap: printAs("gap"),
  onbegin: printAs("begin"),
  onready: readiness && printAs("ready"),
  onstate: (state, about) => {
    if (state === "live") print({ opened: true, ...about });
    else print({ state, ...about });
  },
  onerror: (error) => print({ error: `${error.code}: ${error.message}`, closed: stream.state === "closed" }),
});

stream.twin = (options) => {
  const onstate = (state, about) => "hint" in about && print({ state, ...about, twin: true });
  const callbacks = { onrecord: printAs("message", true), ongap: printAs("gap", true), onstate };
  connect(url, { WebSocket, EventSource, ...options, ...callbacks });
};

for await (const line of createInterface({ input: process.stdin })) {
  const { call, with: argument } = JSON.parse(line);
  Promise.resolve(stream[call](argument)).then(
    (result) => print({ result: result ?? null, argument }),
    (error) => print({ result: `${error.code}: ${error.message}`, argument }),
  );
}
process.exit(); // the test has ended
