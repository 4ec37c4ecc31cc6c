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

/* The rows of a job, and milliseconds from an event in the shop to this page: both have the clock
   of this machine. Rows of events from before the page was opened are counted, and not measured. */
class Latency {
  constructor(job) {
    this.card = document.querySelector(`[data-job="${job}"]`);
    this.samples = [];
    this.measured = this.count = 0;
    this.draw = this.draw.bind(this);
  }
  add(sent) {
    this.count++;
    if (sent > openedAt) this.samples[this.measured++ % MAX_SAMPLES] = Date.now() - sent;
    scheduleDraw(this.draw);
  }
  draw() {
    this.card.dataset.count = this.count;
    let text = "none yet of an event since this page was opened";
    if (this.measured) {
      const sorted = [...this.samples].sort((a, b) => a - b);
      const quantile = (share) => sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * share))];
      Object.assign(this.card.dataset, { p50: quantile(0.5), p99: quantile(0.99) });
      this.card.querySelector("output").textContent = formatDuration(quantile(0.5));
      text = `half within this time, 99 % within ${formatDuration(quantile(0.99))}`;
    }
    this.card.querySelector(".note").textContent = `${formatCount(this.count)} rows; ${text}`;
  }
}

const openedAt = Date.now();
const formatDuration = (ms) => (ms < 995 ? `${Math.round(ms)} ms` : `${(ms / 1000).toFixed(1)} s`);
const formatTime = (time) => new Date(time).toLocaleTimeString("en-GB");
const formatCount = (count) => count.toLocaleString("en");
const formatAmount = (amount) => amount.toFixed(2);

const latencies = Object.fromEntries(["known", "visits", "settled"].map((job) => [job, new Latency(job)]));
const tables = Object.fromEntries(["known", "visits", "settled", "jobs"].map((id) => [id, new Table($(id))]));
const openSessions = new Set();
const totals = { paid: 0, unpaid: 0, owed: 0 };

/* What is done with a record of each stream. */
const handlers = {
  visits(row) {
    latencies.visits.add(row.state === "open" ? row.sent : 0);
    const name = `${row.user} ${row.start}`;
    if (row.state === "open") openSessions.add(name); else openSessions.delete(name);
    scheduleDraw(() => {
      if (row.state === "merged") tables.visits.removeRow(name); // it became part of another session
      else tables.visits.setRow(name, [row.user, formatTime(row.start), row.events, row.state], row.state);
      $("open").textContent = `${formatCount(openSessions.size)} open`;
    });
  },
  settled(row) {
    const paid = row.payment !== undefined && row.payment !== null;
    if (paid) latencies.settled.add(row.paid);
    totals[paid ? "paid" : "unpaid"]++;
    if (!paid) totals.owed += row.amount;
    const state = paid ? "paid" : "unpaid";
    scheduleDraw(() => {
      tables.settled.setRow(row.order, [row.order, row.user, formatAmount(row.amount), state], state);
      $("paid").textContent = formatCount(totals.paid);
      $("unpaid").textContent = formatCount(totals.unpaid);
      $("owed").textContent = `${totals.owed.toLocaleString("en", { maximumFractionDigits: 2 })} € owed`;
    });
  },
  known(row) {
    latencies.known.add(row.sent);
    scheduleDraw(() => tables.known.setRow(row.id, [row.user, row.page, row.country ?? "unknown", row.plan ?? "unknown"]));
  },
  progress({ name, batchId, numInputRows, durationMs, stateOperators }) {
    const batchMs = durationMs?.triggerExecution ?? 0;
    const stateRows = (stateOperators ?? []).reduce((sum, each) => sum + (each.numRowsTotal ?? 0), 0);
    scheduleDraw(() => tables.jobs.setRow(name, [name, formatCount(batchId), formatCount(numInputRows), formatDuration(batchMs), formatCount(stateRows)]));
  },
  parts(part) {
    parts.set(part.part, part);
    scheduleDraw(drawParts);
  },
};

/* What starts shows for how long; so does the card of a job, until it has rows. */
const parts = new Map();
function drawParts() {
  for (const { part, state, text, at } of parts.values()) {
    const seconds = Math.max(0, Math.round((Date.now() - at) / 1000));
    const shown = state === "starting" ? `${text}: ${seconds} s` : text;
    const item = $(`part-${part}`) ?? Object.assign(document.createElement("li"), { id: `part-${part}` });
    item.dataset.state = state;
    item.replaceChildren(Object.assign(document.createElement("b"), { textContent: part }), shown);
    if (!item.isConnected) $("parts").append(item);
    const note = document.querySelector(`[data-job="${part}"]:not([data-count]) .note`);
    if (note) note.textContent = state === "running" ? "no rows yet" : shown;
  }
}
setInterval(drawParts, 1000);

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
