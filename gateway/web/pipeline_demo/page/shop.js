import { scheduleDraw } from "./draw.js";
import { Stream } from "/gateway.js";

const $ = (id) => document.getElementById(id);
const MAX_ROWS = 60;
const MAX_SAMPLES = 1000; // newest latencies of a job

/* A table with the newest row first. A row replaces the row of the same name. */
class Table {
  constructor(body) {
    const heads = body.closest("table").querySelectorAll("th");
    Object.assign(this, { body, rows: new Map(), classes: [...heads].map((head) => head.className) });
  }
  setRow(name, cells, state = "") {
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
  removeRow(name) {
    this.rows.get(name)?.remove();
    this.rows.delete(name);
  }
}

/* Milliseconds from an event in the shop to this page: both have the clock of this machine. */
class Latency {
  constructor(job) {
    this.card = document.querySelector(`[data-job="${job}"]`);
    this.samples = [];
    this.count = 0;
    this.draw = this.draw.bind(this);
  }
  add(sent) {
    this.samples[this.count++ % MAX_SAMPLES] = Date.now() - sent;
    scheduleDraw(this.draw);
  }
  draw() {
    const sorted = [...this.samples].sort((a, b) => a - b);
    const quantile = (share) => sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * share))];
    Object.assign(this.card.dataset, { p50: quantile(0.5), p99: quantile(0.99), count: this.count });
    this.card.querySelector("output").textContent = formatDuration(quantile(0.5));
    this.card.querySelector(".note").textContent =
      `half within; 99 % within ${formatDuration(quantile(0.99))}; ${this.count.toLocaleString("en")} rows`;
  }
}

const formatDuration = (ms) => (ms < 995 ? `${Math.round(ms)} ms` : `${(ms / 1000).toFixed(1)} s`);
const formatTime = (time) => new Date(time).toLocaleTimeString("en-GB");
const formatAmount = (amount) => amount.toFixed(2);

/* Records from before the page was opened are shown, but are no measure of the latency. */
const openedAt = Date.now();
const latencies = Object.fromEntries(["known", "visits", "settled"].map((job) => [job, new Latency(job)]));
function addLatency(job, sent) {
  if (sent && sent > openedAt) latencies[job].add(sent);
}

const tables = Object.fromEntries(["known", "visits", "settled", "jobs"].map((id) => [id, new Table($(id))]));
const openSessions = new Set();
const totals = { paid: 0, unpaid: 0, owed: 0 };

/* What is done with a record of each stream. */
const handlers = {
  visits(row) {
    addLatency("visits", row.state === "open" ? row.sent : 0);
    const name = `${row.user} ${row.start}`;
    if (row.state === "open") openSessions.add(name); else openSessions.delete(name);
    scheduleDraw(() => {
      if (row.state === "merged") tables.visits.removeRow(name); // it became part of another session
      else tables.visits.setRow(name, [row.user, formatTime(row.start), row.events, row.state], row.state);
      $("open").textContent = `${openSessions.size} open`;
    });
  },
  settled(row) {
    const paid = row.payment !== undefined && row.payment !== null;
    if (paid) addLatency("settled", row.paid);
    totals[paid ? "paid" : "unpaid"]++;
    if (!paid) totals.owed += row.amount;
    const state = paid ? "paid" : "unpaid";
    scheduleDraw(() => {
      tables.settled.setRow(row.order, [row.order, row.user, formatAmount(row.amount), state], state);
      $("paid").textContent = totals.paid.toLocaleString("en");
      $("unpaid").textContent = totals.unpaid.toLocaleString("en");
      $("owed").textContent = `${totals.owed.toLocaleString("en", { maximumFractionDigits: 2 })} € owed`;
    });
  },
  known(row) {
    addLatency("known", row.sent);
    scheduleDraw(() => tables.known.setRow(row.id, [row.user, row.page, row.country ?? "unknown", row.plan ?? "unknown"]));
  },
  progress({ name, batchId, numInputRows, durationMs, stateOperators }) {
    const batchMs = durationMs?.triggerExecution ?? 0;
    const stateRows = (stateOperators ?? []).reduce((sum, each) => sum + (each.numRowsTotal ?? 0), 0);
    scheduleDraw(() => tables.jobs.setRow(name, [name, batchId, numInputRows, formatDuration(batchMs), stateRows]));
  },
  parts(part) {
    const name = `part-${part.part}`;
    const item = $(name) ?? Object.assign(document.createElement("li"), { id: name });
    item.dataset.state = part.state;
    const title = Object.assign(document.createElement("b"), { textContent: part.part });
    item.replaceChildren(title, part.text);
    if (!item.isConnected) $("parts").append(item);
  },
};

/* The streams of parts and orders start at the first record, the others about now. */
const from = { parts: "earliest", settled: "earliest", visits: "-1m", known: "live", progress: "-1m" };
let paused = false;
const streams = Object.entries(handlers).map(([name, onrecord]) =>
  new Stream(`/events/${name}`, { from: from[name], onrecord, onstate: drawState }));

function drawState() {
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
  drawState();
});

for (const stream of streams) stream.connect();
