// What a user of the module writes; compiled, never run.
import { connect, Stream, StreamError, type Gap, type Item, type Options, type Trouble } from "./gateway.js";

interface Order {
  order: string;
  amount: number;
}

const options: Options<Order> = {
  from: "-5m",
  filter: [{ key: "ada", value: { "/amount": { gte: 10, lt: 20 } } }, { headers: { region: { in: ["eu"] } } }],
  fields: ["/order"],
  credit: 100,
  share: "channel",
  transport: "auto",
  parse: JSON.parse,
  token: async () => "a.b.c",
  store: { load: () => sessionStorage.getItem("at"), save: (at) => sessionStorage.setItem("at", at ?? "") },
  onrecord(order, { position, id }) {
    const total: number = order.amount;
    const kept: [string | null, string, string] = [position, id, this.state];
    void [total, kept];
  },
  ongap: (gap: Gap) => void gap.reason,
  onstate(state, { reason, attempts, hint }) {
    const trouble: Trouble[] = ["unreachable", "foreign-origin", "refused", "proxy-buffering"];
    if (hint !== undefined) void [state === "connecting", attempts, hint.length, trouble];
    else void (state === "closed" && reason);
  },
  onerror: (error) => void (error instanceof StreamError && error.code),
};

const orders: Stream<Order> = connect<Order>("/events/orders", options);
orders.addEventListener("record", ({ detail }) => detail.record.order.length + detail.id.length);
orders.addEventListener("state", ({ detail }) => detail.state === "live");
orders.change({ filter: null, fields: ["/amount"] });

const place = await orders.produce({ key: null, value: { amount: 1 }, headers: { region: "eu" } });
const offset: number = place.offset;

for await (const item of new Stream<Order>("/events/orders")) {
  const every: Item<Order> = item;
  if (item.type === "record") void item.record.amount;
  else if (item.type === "gap") void [item.gap.from, every, offset];
}
orders.connect().close();

// @ts-expect-error: no such transport
connect("/events/orders", { transport: "polling" });
// @ts-expect-error: it is the gateway's
orders.state = "live";
// @ts-expect-error: a record needs a value
void orders.produce({ key: "ada" });
// @ts-expect-error: an order has no such field
connect<Order>("/events/orders", { onrecord: (order) => order.price });
// @ts-expect-error: no such condition
orders.change({ filter: { key: { like: "a%" } } });
