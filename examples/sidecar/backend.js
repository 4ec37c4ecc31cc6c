// A back end in Node, without any package, that is called with orders out of Kafka. See README.md.
//
// Batches come at least once, so what is done is known by its place (topic, partition, offset).

const http = require("node:http");

const PORT = Number(process.env.PORT ?? 8081);

const done = new Map(); // the last offset of each partition; yours is in a database
const totals = {};

function settle({ topic, partition, offset, value: order }) {
  const place = `${topic}-${partition}`;
  if (offset <= (done.get(place) ?? -1)) return;
  const total = order.quantity * order.price;
  if (!(total > 0)) throw new Error(`order ${order.order} costs ${total}`);
  totals[order.customer] = (totals[order.customer] ?? 0) + total;
  done.set(place, offset);
}

// An item for each record, in their order.
function answered(record) {
  const { topic, partition, offset } = record;
  const place = { topic, partition, offset };
  try {
    settle(record);
    return { record: place, processed: true };
  } catch (error) {
    return { record: place, processed: false, stacktrace: error.stack };
  }
}

async function body(request) {
  const pieces = [];
  for await (const piece of request) pieces.push(piece);
  return Buffer.concat(pieces).toString();
}

function answer(response, status, value) {
  response.writeHead(status, { "Content-Type": "application/json" });
  response.end(JSON.stringify(value));
}

const server = http.createServer(async (request, response) => {
  const asked = `${request.method} ${request.url}`;
  if (asked === "POST /kafka/records") {
    const records = JSON.parse(await body(request));
    answer(response, 200, records.map(answered));
  } else if (asked === "GET /health") {
    answer(response, 200, { status: "up" });
  } else if (asked === "GET /totals") {
    answer(response, 200, totals);
  } else {
    answer(response, 404, { error: "not found" });
  }
});

server.listen(PORT, "127.0.0.1", () => console.log(`listening on ${PORT}`));
