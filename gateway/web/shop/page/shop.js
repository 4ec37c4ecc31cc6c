import { Stream } from "/gateway.js";

const $ = (id) => document.getElementById(id);
const MAX_ROWS = 60;
const SAMPLES = 1000;

/* Drawing at most once a frame, however many records come. */
const due = new Set();
function soon(draw) {
  if (!due.size) requestAnimationFrame(() => { const all = [...due]; due.clear(); all.forEach((f) => f()); });
  due.add(draw);
}

/* A table whose newest row is the first; rows of the same name are one. */
class Table {
  constructor(body) {
    const heads = body.closest("table").querySelectorAll("th");
    Object.assign(this, { body, rows: new Map(), classes: [...heads].map((head) => head.className) });
  }
  show(name, cells, state = "") {
    const row = this.rows.get(name) ?? document.createElement("tr");
    this.rows.set(name, row);
    while (row.children.length < cells.length) row.append(document.createElement("td"));
    cells.forEach((cell, i) => {
      row.children[i].textContent = cell;
      row.children[i].className = this.classes[i];
    });
    row.className = state;
    this.body.prepend(row);
    while (this.body.children.length > MAX_ROWS) {
      const last = this.body.lastElementChild;
      for (const [key, value] of this.rows) if (value === last) this.rows.delete(key);
      last.remove();
    }
  }
  drop(name) {
    this.rows.get(name)?.remove();
    this.rows.delete(name);
  }
}

/* Milliseconds from what happened in the shop to this page: both have this machine's clock. */
class Latency {
  constructor(job) {
    this.card = document.querySelector(`[data-job="${job}"]`);
    this.samples = [];
    this.count = 0;
    this.draw = this.draw.bind(this);
  }
  add(sent) {
    const took = Date.now() - sent;
    this.samples[this.count++ % SAMPLES] = took;
    soon(this.draw);
  }
  draw() {
    const sorted = [...this.samples].sort((a, b) => a - b);
    const at = (share) => sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * share))];
    Object.assign(this.card.dataset, { p50: at(0.5), p99: at(0.99), count: this.count });
    this.card.querySelector("output").textContent = span(at(0.5));
    this.card.querySelector(".note").textContent =
      `half within; 99 % within ${span(at(0.99))}; ${this.count.toLocaleString("en")} rows`;
  }
}

const span = (ms) => (ms < 995 ? `${Math.round(ms)} ms` : `${(ms / 1000).toFixed(1)} s`);
const clock = (time) => new Date(time).toLocaleTimeString("en-GB");
const money = (amount) => amount.toFixed(2);

/* What came before the page was opened is shown, and says nothing of how fast it comes. */
const opened = Date.now();
const latencies = Object.fromEntries(["known", "visits", "settled"].map((job) => [job, new Latency(job)]));
function late(job, sent) {
  if (sent && sent > opened) latencies[job].add(sent);
}

const tables = Object.fromEntries(["known", "visits", "settled", "jobs"].map((id) => [id, new Table($(id))]));
const open = new Set();
const sums = { paid: 0, unpaid: 0, owed: 0 };

const shows = {
  visits(row) {
    late("visits", row.state === "open" ? row.sent : 0);
    const name = `${row.user} ${row.start}`;
    if (row.state === "open") open.add(name); else open.delete(name);
    soon(() => {
      if (row.state === "merged") tables.visits.drop(name); // it went into another session
      else tables.visits.show(name, [row.user, clock(row.start), row.events, row.state], row.state);
      $("open").textContent = `${open.size} open`;
    });
  },
  settled(row) {
    const paid = row.payment !== undefined && row.payment !== null;
    if (paid) late("settled", row.paid);
    sums[paid ? "paid" : "unpaid"]++;
    if (!paid) sums.owed += row.amount;
    const state = paid ? "paid" : "unpaid";
    soon(() => {
      tables.settled.show(row.order, [row.order, row.user, money(row.amount), state], state);
      $("paid").textContent = sums.paid.toLocaleString("en");
      $("unpaid").textContent = sums.unpaid.toLocaleString("en");
      $("owed").textContent = `${sums.owed.toLocaleString("en", { maximumFractionDigits: 2 })} € owed`;
    });
  },
  known(row) {
    late("known", row.sent);
    soon(() => tables.known.show(row.id, [row.user, row.page, row.country ?? "unknown", row.plan ?? "unknown"]));
  },
  progress(told) {
    const took = told.durationMs?.triggerExecution ?? 0;
    const held = (told.stateOperators ?? []).reduce((sum, each) => sum + (each.numRowsTotal ?? 0), 0);
    soon(() => tables.jobs.show(told.name, [told.name, told.batchId, told.numInputRows, span(took), held]));
  },
  parts(told) {
    const name = `part-${told.part}`;
    const item = $(name) ?? Object.assign(document.createElement("li"), { id: name });
    item.dataset.state = told.state;
    const title = Object.assign(document.createElement("b"), { textContent: told.part });
    item.replaceChildren(title, told.text);
    if (!item.isConnected) $("parts").append(item);
  },
};

/* Streams: parts and orders from the first, the others from a little before now. */
const from = { parts: "earliest", settled: "earliest", visits: "-1m", known: "live", progress: "-1m" };
let paused = false;
const streams = Object.entries(shows).map(([name, onrecord]) =>
  new Stream(`/events/${name}`, { from: from[name], onrecord, onstate: drawLink }));

function drawLink() {
  const states = streams.map((stream) => stream.state);
  const state = states.every((each) => each === "live") ? "live" : paused ? "closed" : "connecting";
  $("link").dataset.state = state;
  const text = { live: "live", closed: "paused", connecting: "connecting" }[state];
  if ($("link").textContent !== text) $("link").textContent = text;
}

$("pause").addEventListener("click", () => {
  paused = !paused;
  $("pause").setAttribute("aria-pressed", String(paused));
  $("pause").textContent = paused ? "Go on" : "Pause";
  for (const stream of streams) paused ? stream.close() : stream.connect();
  drawLink();
});

for (const stream of streams) stream.connect();
