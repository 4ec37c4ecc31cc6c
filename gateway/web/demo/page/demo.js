import { scheduleDraw } from "./draw.js";

const $ = (id) => document.getElementById(id);
const WINDOW_MS = 120_000;
const MAX_ROWS = 60;
const STATUSES = ["created", "paid", "shipped"];
const CUSTOMERS = ["ada", "edsger", "frances", "grace", "hedy", "katherine", "linus", "radia"];

const formatPercent = (n) => `${n.toFixed(n < 10 ? 1 : 0)} %`;
function formatBytes(n) {
  const units = ["B", "KB", "MB", "GB", "TB"];
  let i = 0;
  for (; n >= 1000 && i < units.length - 1; i++) n /= 1000;
  return `${n.toFixed(i && n < 100 ? 1 : 0)} ${units[i]}`;
}
const formatRate = (n) => `${formatBytes(n)}/s`;

/* A stream: an EventSource that can be closed, and opened again at the position it had. */
class Stream {
  constructor(path, stateElement, onEvent) {
    Object.assign(this, { path, stateElement, onEvent, lastId: "", source: null, openCount: 0 });
  }
  open() {
    const url = new URL(this.path, document.baseURI);
    if (this.lastId) url.searchParams.set("lastEventId", this.lastId);
    else url.searchParams.set("from", "earliest");
    const source = (this.source = new EventSource(url));
    this.setState("connecting", "connecting");
    source.onopen = () => { this.openCount++; this.setState("live", "live"); };
    source.onerror = (event) => {
      if (event.data) return this.receive(event); // the server's own `error` event
      if (source.readyState === EventSource.CONNECTING) return this.setState("connecting", "reconnecting");
      this.setState("closed", "refused, trying again in 3 s"); // the browser does not try again
      this.timer = setTimeout(() => this.open(), 3000);
    };
    for (const name of ["message", "begin", "ready", "partitions-ready", "position", "gap", "delete", "end"]) {
      source.addEventListener(name, (event) => this.receive(event));
    }
  }
  receive(event) {
    if (event.target !== this.source) return;
    if (event.lastEventId) this.lastId = event.lastEventId;
    this.onEvent(event);
  }
  close(state = "cut", text = "cut by you") {
    clearTimeout(this.timer);
    this.source?.close();
    this.source = null;
    this.setState(state, text);
  }
  setState(state, text) {
    this.stateElement.dataset.state = state;
    if (this.stateElement.textContent !== text) this.stateElement.textContent = text;
    scheduleDraw(drawPartitions);
  }
}

/* A plot of the last two minutes. `top` fixes the scale; without it the highest value does, by
   square roots, so that one burst does not flatten the rest. */
class Plot {
  constructor(element, { top = 0 } = {}) {
    Object.assign(this, { element, top, points: [], draw: this.draw.bind(this) });
    element.setAttribute("viewBox", "0 0 100 40");
    element.setAttribute("preserveAspectRatio", "none");
    element.innerHTML = '<line x1="0" y1="40" x2="100" y2="40"/><path class="area"/><path class="a"/><path class="b"/>';
  }
  add(at, ...values) {
    this.points.push([at, ...values]);
    while (this.points[0][0] < at - WINDOW_MS) this.points.shift();
    scheduleDraw(this.draw);
  }
  draw() {
    const end = this.points.at(-1)[0];
    const scale = this.top ? (n) => n : Math.sqrt;
    const top = scale(this.top || Math.max(1024, ...this.points.flatMap((p) => p.slice(1))));
    const line = (i) => this.points.map((p, n) => {
      const x = 100 - ((end - p[0]) / WINDOW_MS) * 100;
      return `${n ? "L" : "M"}${x.toFixed(2)} ${(40 - (scale(p[i]) / top) * 38).toFixed(2)}`;
    }).join("");
    const first = 100 - ((end - this.points[0][0]) / WINDOW_MS) * 100;
    this.element.querySelector(".area").setAttribute("d", `${line(1)}L100 40L${first.toFixed(2)} 40Z`);
    this.element.querySelector(".a").setAttribute("d", line(1));
    if (this.points[0].length > 2) this.element.querySelector(".b").setAttribute("d", line(2));
  }
}

/* This machine */
const plots = {
  cpu: new Plot($("cpu-plot"), { top: 100 }),
  memory: new Plot($("memory-plot"), { top: 100 }),
  disk: new Plot($("disk-plot")),
  network: new Plot($("network-plot")),
};
let maxRate = 0; // of the network
/* What is done with a record of each metric. */
const metricHandlers = {
  cpu(m) {
    plots.cpu.add(m.at, m.percent);
    $("cpu").textContent = formatPercent(m.percent);
    $("cpu-note").textContent = `${m.cores.length} cores, load ${m.load.toFixed(2)}`;
    const cores = $("cores");
    while (cores.children.length < m.cores.length) cores.append(document.createElement("i"));
    m.cores.forEach((used, i) => cores.children[i].style.setProperty("--used", `${used}%`));
  },
  memory(m) {
    plots.memory.add(m.at, m.percent);
    $("memory").textContent = formatPercent(m.percent);
    $("memory-note").textContent = `${formatBytes(m.used)} of ${formatBytes(m.total)} in use`;
  },
  disk(m) {
    plots.disk.add(m.at, m.read, m.written);
    $("read").textContent = formatRate(m.read);
    $("written").textContent = formatRate(m.written);
    $("disk-note").textContent = `${formatBytes(m.used)} of ${formatBytes(m.total)} full`;
  },
  network(m) {
    plots.network.add(m.at, m.received, m.sent);
    $("received").textContent = formatRate(m.received);
    $("sent").textContent = formatRate(m.sent);
    maxRate = Math.max(m.received, m.sent, maxRate);
    $("network-note").textContent = `highest ${formatRate(maxRate)}`;
  },
};
const host = new Stream("events/host", $("host-state"), (event) => {
  if (event.type !== "message") return;
  const record = JSON.parse(event.data);
  $("host-name").textContent = record.host;
  metricHandlers[record.metric]?.(record);
});

/* Orders */
const rows = new Map();
let gaps = 0;
let count = 0;
let outage = null; // { since, reconnectedAt, missed, gaps, wrong } of a cut, until it is reported

function showOrder(order) {
  let row = rows.get(order.order);
  if (!row) {
    row = document.createElement("tr");
    for (let i = 0; i < 5; i++) row.append(document.createElement("td"));
    row.children[3].className = "number";
    rows.set(order.order, row);
  }
  const [id, customer, item, total, status] = row.children;
  id.textContent = order.order;
  customer.textContent = order.customer;
  item.textContent = order.quantity > 1 ? `${order.quantity} × ${order.item}` : order.item;
  total.textContent = `${order.total.toFixed(2)} €`;
  const step = STATUSES.indexOf(order.status);
  const bar = document.createElement("span");
  bar.className = "steps";
  bar.setAttribute("aria-hidden", "true");
  bar.innerHTML = STATUSES.map((_, i) => `<i class="${i <= step ? "done" : ""}"></i>`).join("");
  status.replaceChildren(bar, order.status);
  row.classList.remove("fresh");
  if (Date.now() - order.at < 3000) {
    void row.offsetWidth; // restarts its animation
    row.classList.add("fresh");
  }
  $("orders").prepend(row);
  while (rows.size > MAX_ROWS) {
    const last = $("orders").lastElementChild;
    rows.delete(last.children[0].textContent);
    last.remove();
  }
}

/* Count lost and repeated steps: an order is created, paid and shipped, each once, in this order. */
const steps = new Map();
let checked = 0;
let wrong = 0;
function checkStep(order) {
  const step = STATUSES.indexOf(order.status);
  const before = steps.get(order.order);
  if (before !== undefined) {
    checked++;
    if (step !== before + 1) wrong++;
  }
  steps.set(order.order, step);
  if (steps.size > 5000) steps.delete(steps.keys().next().value);
}

let newOrders = [];
function drawOrders() {
  newOrders.slice(-4 * MAX_ROWS).forEach(showOrder);
  newOrders = [];
}

let lastEvent = null;
function drawWire() {
  const { type, data, lastEventId } = lastEvent;
  $("count").textContent = count.toLocaleString("en");
  $("checked").textContent = checked
    ? `${checked.toLocaleString("en")} order updates, ${wrong ? `${wrong} lost or twice` : "none lost, none twice"}` : "–";
  $("reconnects").textContent = Math.max(0, orders.openCount - 1);
  $("last-id").textContent = lastEventId || "–";
  const name = type === "message" ? "" : `event: ${type}\n`;
  $("raw").textContent = `${name}${data.split("\n").map((l) => `data: ${l}`).join("\n")}\nid: ${lastEventId}`;
}

function showMessage(text, kind = "") {
  $("message").textContent = text;
  $("message").className = `message ${kind}`;
}

/* Report after a cut what happened during it, while the orders of that time arrive. */
function reportOutage(order) {
  if (!outage?.reconnectedAt) return;
  if (order.at < outage.reconnectedAt) outage.missed++;
  const seconds = Math.round((outage.reconnectedAt - outage.since) / 1000);
  const result = outage.gaps !== gaps ? "Kafka no longer had some: see gaps."
    : outage.wrong !== wrong ? "Some are missing or came twice!" : "Nothing is missing.";
  showMessage(`${outage.missed} order events happened during the ${seconds} s without a connection; they came on reconnecting. ${result}`,
    outage.gaps === gaps && outage.wrong === wrong ? "good" : "bad");
  if (order.at > outage.reconnectedAt + 2000) outage = null;
}

let pendingCount = 0;
let partitionCount = 0;
function drawPartitions() {
  const isLive = $("orders-state").dataset.state === "live";
  $("partitions").textContent = isLive && partitionCount
    ? `${partitionCount}, ${pendingCount ? `${pendingCount} not ready yet` : "all ready"}` : "–";
}

/* What is done with a control event of each name. */
const controlHandlers = {
  begin(data) {
    pendingCount = data.pending?.length ?? 0;
    partitionCount = Array.isArray(data.partitions) ? data.partitions.length
      : typeof data.partitions === "object" && data.partitions
        ? Object.values(data.partitions).reduce((n, p) => n + (Array.isArray(p) ? p.length : Number(p)), 0)
        : data.partitions;
    scheduleDraw(drawPartitions);
  },
  ready() {
    pendingCount = Math.max(0, pendingCount - 1);
    scheduleDraw(drawPartitions);
  },
  gap(data) {
    gaps++;
    const where = data.topic ? `${data.topic}-${data.partition} offsets ${data.from} to ${data.to}, ` : "";
    $("gaps").textContent = `${gaps}: ${where}${data.reason}`;
    if (data.reason !== "position-refused" && data.reason !== "recreated") return;
    clearOrders(); // those that come now are others
    outage = null;
    showMessage(INVITATION);
  },
  error(data) { showMessage(data.message ?? JSON.stringify(data), "bad"); },
  end(data) { orders.setState("connecting", `ended by the gateway: ${data.reason}`); },
};

function handleOrderEvent(event) {
  count++;
  lastEvent = event;
  scheduleDraw(drawWire);
  const data = JSON.parse(event.data || "{}");
  if (event.type !== "message") return controlHandlers[event.type]?.(data);
  checkStep(data);
  newOrders.push(data);
  reportOutage(data);
  scheduleDraw(drawOrders);
}

function clearOrders() {
  rows.clear();
  steps.clear();
  newOrders = [];
  $("orders").replaceChildren();
}

const INVITATION = $("message").textContent;
let orders;
function selectCustomer(customer) {
  orders?.close();
  const path = customer ? `events/orders/${encodeURIComponent(customer)}` : "events/orders";
  orders = new Stream(path, $("orders-state"), handleOrderEvent);
  clearOrders();
  count = gaps = checked = wrong = 0;
  outage = lastEvent = null;
  $("gaps").textContent = "none";
  showMessage(INVITATION);
  $("path").textContent = `/${path}`;
  $("cut").textContent = "Cut the connection";
  orders.open();
}

$("customer").append(...CUSTOMERS.map((name) => new Option(name, name)));
$("customer").addEventListener("change", (event) => selectCustomer(event.target.value));
$("cut").addEventListener("click", () => {
  if (orders.source) {
    orders.close();
    outage = { since: Date.now(), reconnectedAt: 0, missed: 0, gaps, wrong };
    $("cut").textContent = "Reconnect";
    showMessage("The connection is cut. Orders go on being placed; reconnect when you like.", "bad");
  } else {
    if (outage) outage.reconnectedAt = Date.now();
    $("cut").textContent = "Cut the connection";
    orders.open();
  }
});

/* Lines for a terminal and for scripts */
const base = new URL(".", document.baseURI).href.replace(/\/$/, "");
const lines = [
  ["every order, from now on", `curl -N ${base}/events/orders`],
  ["one customer's orders, from the first Kafka has", `curl -N '${base}/events/orders/ada?from=earliest'`],
  ["whole records: key, headers, offset, timestamp", `curl -N '${base}/records/orders?from=earliest'`],
  ["this machine", `curl -N ${base}/events/host`],
  ["is the gateway ready?", `curl ${base}/health/ready`],
  ["JavaScript in a page", `import { connect } from "${base}/gateway.js";

connect("${base}/events/orders", {
  from: "-5m",
  onrecord: (order) => console.log(order.customer, order.total),
  onstate: (state, { hint }) => console.log(state, hint ?? ""),
});`],
  ["TypeScript, with the npm package", `import { connect } from "gateway.js";

interface Order { order: string; customer: string; status: string; total: number }
const orders = connect<Order>("${base}/events/orders", {
  onrecord: ({ customer, total }, { position }) => console.log(position, customer, total),
  onstate: (state, { hint }) => console.log(state, hint ?? ""),
});`],
];
$("try").append(...lines.map(([description, line]) => {
  const item = document.createElement("li");
  item.innerHTML = "<div><span></span><code></code></div><button type='button'>Copy</button>";
  item.querySelector("span").textContent = description;
  item.querySelector("code").textContent = line;
  const button = item.querySelector("button");
  button.setAttribute("aria-label", `Copy: ${description}`);
  button.addEventListener("click", async () => {
    try { await navigator.clipboard.writeText(line); button.textContent = "Copied"; }
    catch { getSelection().selectAllChildren(item.querySelector("code")); button.textContent = "Selected"; }
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  });
  return item;
}));

host.open();
selectCustomer("");
