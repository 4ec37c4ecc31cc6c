// Prints the orders of a stream, each once, over any number of cuts and restarts of its own:
//   node dist/client.js URL FILE-FOR-THE-POSITION
import { existsSync, readFileSync, renameSync, writeFileSync } from "node:fs";
import { connect } from "gateway.js";

interface Order {
  order: string;
  customer: string;
  status: "created" | "paid" | "shipped";
  total: number;
}

const [url = "http://127.0.0.1:8080/events/orders", file = "orders.position"] = process.argv.slice(2);

process.stdout.on("error", () => process.exit()); // who reads has left, as `| head` does

const orders = connect<Order>(url, {
  from: "earliest",
  position: existsSync(file) ? readFileSync(file, "utf8") : null,
  credit: 100, // what is not taken yet waits in Kafka, not here
  WebSocket: globalThis.WebSocket ?? (await import("ws")).default, // Node 20 has none
  onstate: (state, { reason }) => console.error(state, reason ?? ""),
  onerror: (error) => console.error(error.message),
});

for await (const item of orders) {
  if (item.type === "gap") console.error("missed", item.gap);
  if (item.type === "record") print(item.record);
  if (item.position) keep(item.position); // after the work: what was cut off is done again
}

function print({ order, customer, status }: Order): void {
  console.log(order, customer, status);
}

/** Whole or not at all. */
function keep(position: string): void {
  writeFileSync(`${file}.new`, position);
  renameSync(`${file}.new`, file);
}
