/** The first view: figures with their charts, workers, and the grid of partitions. */

import { Chart, SAMPLES } from "./chart.js";
import { byId, bytes, cell, clock, count, duration, element, seconds, setText, showFacts, showRows } from "./format.js";
import { PartitionGrid } from "./grid.js";
import { Partitions, STATES, STATE_HELP, TROUBLED } from "./partitions.js";

const MAX_TROUBLED_ROWS = 50;
const CHARTS = ["delivered", "clients", "latency", "memory"]; // in the order of a sample's values
const SAMPLE_S = 5;
/** The height of a latency in its chart: one record that was late does not flatten the others. */
const scaleLatency = (value) => value && Math.max(0, Math.log10(value * 1000)); // from 1 ms

export class OverviewView {
  #partitions = new Partitions();
  #charts = CHARTS.map((id) => new Chart(byId(`${id}-plot`)));
  #history = new Map(); // the values of samples by the number of their interval
  #figures = {};
  #outages = []; // of Kafka, with the times of begin and end
  #troubles = []; // the times of other incidents
  #workers = []; // as of the last event that names them: most deltas do not
  #chosen = null;
  #grid;
  #legend = new Map();

  constructor() {
    this.#grid = new PartitionGrid(byId("grid"), this.#partitions, (key) => this.#choose(key));
    const filter = () => this.#grid.layOut(this.#buildFilter());
    byId("partition-filter").addEventListener("input", filter);
    byId("only-troubled").addEventListener("change", filter);
    for (const state of STATES) {
      const number = element("b", {}, "0");
      this.#legend.set(state, number);
      const swatch = element("i", { class: "swatch", "data-state": state, "aria-hidden": "true" });
      byId("legend").append(element("li", { title: STATE_HELP[state] }, swatch, `${state} `, number));
    }
  }

  apply(event, isSnapshot) {
    if (isSnapshot) {
      this.#partitions.clear();
      this.#history.clear();
      this.#outages = [];
      this.#troubles = [];
    }
    if (isSnapshot || event.partitions || event.removed) {
      const isNew = this.#partitions.apply(event.partitions, event.removed);
      if (isNew || isSnapshot || byId("only-troubled").checked) this.#grid.layOut(this.#buildFilter());
      else this.#grid.render();
      this.#showPartitions();
    }
    for (const incident of event.incidents ?? []) this.#addIncident(incident);
    if (event.history) this.#showHistory(event.history);
    if (event.figures) this.#showFigures(event.figures);
    if (event.workers) showWorkers((this.#workers = event.workers));
    if (event.figures || event.partitions || event.removed || event.workers) this.#showHealth();
    if (event.figures) this.#showRecent();
  }

  #addIncident({ kind, subject, at }) {
    const open = this.#outages.find((each) => each.subject === subject && each.end === null);
    if (kind === "kafka-back") open && (open.end = at);
    else if (kind === "kafka-lost") open || this.#outages.push({ subject, begin: at, end: null });
    else if (kind !== "partition-back") this.#troubles.push(at);
  }

  /** What went wrong in the time of the charts, although it may be well again. */
  #showRecent() {
    const first = Date.now() / 1000 - SAMPLES * SAMPLE_S;
    this.#troubles = this.#troubles.filter((at) => at >= first);
    this.#outages = this.#outages.filter(({ end }) => end === null || end >= first);
    const parts = this.#outages.map(({ subject, begin, end }) =>
      end === null ? `${subject} has been away since ${clock(begin)}` : `${subject} was away from ${clock(begin)} to ${clock(end)}`);
    if (this.#troubles.length) parts.push(`${this.#troubles.length} other incidents`);
    byId("recent").hidden = !parts.length;
    setText("recent-text", parts.join("; "));
  }

  #buildFilter() {
    const text = byId("partition-filter").value.trim().toLowerCase();
    const isTroubledOnly = byId("only-troubled").checked;
    return (row) =>
      (!isTroubledOnly || TROUBLED.has(row.state)) && row.topicName.toLowerCase().includes(text);
  }

  #showFigures(figures) {
    this.#figures = figures;
    if (!("fetched" in figures) && figures.clients === undefined) return;
    setText("delivered", figures.delivered == null ? "–" : `${count(figures.delivered)}/s`);
    setText("sent", figures.sentBytes == null ? "–" : `${bytes(figures.sentBytes)}/s`);
    setText("fetched", figures.fetched == null ? "–" : `${count(figures.fetched)}/s`);
    setText("client-count", count(figures.clients));
    setText("behind", count(figures.behind));
    setText("websockets", count(figures.websockets));
    setText("latency", seconds(figures.latencyHigh));
    setText("latency-note", figures.latencyHigh === null
      ? "No record was sent in the last second"
      : `99 % are faster; half within ${seconds(figures.latencyMedian)}`);
    setText("memory", bytes(figures.rss));
    setText("cache", bytes(figures.memory));
    setText("memory-limit", bytes(figures.memoryLimit));
  }

  #showHistory(samples) {
    for (const [number, ...values] of samples) this.#history.set(number, values);
    const first = Math.max(...this.#history.keys()) - SAMPLES + 1;
    for (const number of this.#history.keys()) if (number < first) this.#history.delete(number);
    this.#charts.forEach((chart, n) => {
      const values = Array.from({ length: SAMPLES }, (_, k) => this.#history.get(first + k)?.[n] ?? null);
      chart.show(CHARTS[n] === "latency" ? values.map(scaleLatency) : values);
    });
  }

  /** One sentence that says whether anything is wrong. */
  #showHealth() {
    const counts = this.#partitions.countStates();
    const problems = [];
    for (const state of TROUBLED) {
      if (counts.get(state)) problems.push(`${counts.get(state)} of ${this.#partitions.size} partitions ${state}`);
    }
    for (const [cluster, isReachable] of Object.entries(this.#figures.reachable ?? {})) {
      if (!isReachable) problems.push(`Kafka${cluster && ` ${cluster}`} cannot be reached`);
    }
    const missing = this.#workers.filter((each) => !each.up);
    if (missing.length) problems.push(`worker ${missing.map((each) => each.worker).join(", ")} does not answer`);
    const isKnown = this.#figures.clients !== undefined; // nothing is well of which nothing is known
    byId("health").dataset.level = problems.length ? "bad" : isKnown ? "good" : "quiet";
    setText("health", problems.join("; ") || (isKnown ? "Everything that is read can be read" : "waiting for the first figures"));
  }

  #showPartitions() {
    const counts = this.#partitions.countStates();
    for (const [state, number] of this.#legend) number.textContent = counts.get(state);
    setText("partition-count", String(this.#partitions.size));
    const troubled = [...this.#partitions.values()].filter((row) => TROUBLED.has(row.state));
    troubled.sort((one, other) => one.since - other.since || (one.key < other.key ? -1 : 1));
    byId("troubled").hidden = !troubled.length;
    byId("no-partitions").hidden = this.#partitions.size > 0;
    byId("grid-help").hidden = !this.#partitions.size;
    showRows("troubled-rows", troubled.slice(0, MAX_TROUBLED_ROWS).map((row) =>
      element("tr", {},
        element("th", { scope: "row" }, `${row.topicName} ${row.partition}`),
        cell(row.state), cell(row.cause), cell(clock(row.since)), cell(clock(row.retryAt)),
        cell(count(row.lag), { class: "number" }))),
      troubled.length - MAX_TROUBLED_ROWS);
    this.#showChosen();
  }

  #choose(key) {
    this.#chosen = key;
    this.#showChosen();
  }

  #showChosen() {
    const row = this.#partitions.get(this.#chosen);
    if (!row) {
      showFacts("partition-details", []);
      return;
    }
    showFacts("partition-details", [
      ["Partition", `${row.topicName} ${row.partition}`],
      ["State", `${row.state}: ${STATE_HELP[row.state]}`],
      ["Cause", row.cause],
      ["Since", `${clock(row.since)} (${duration(Date.now() / 1000 - row.since)})`],
      ["Retry at", row.retryAt && clock(row.retryAt)],
      ["Lag", count(row.lag)],
      ["Leader", row.leader ?? "none"],
    ]);
  }
}

function showWorkers(workers) {
  showRows("workers", workers.map((each) =>
    element("tr", { class: each.up ? null : "bad" },
      element("th", { scope: "row" }, String(each.worker)),
      cell(each.up ? "up" : "does not answer"),
      cell(each.pid, { class: "number" }), cell(count(each.clients), { class: "number" }),
      cell(bytes(each.rss), { class: "number" }), cell(seconds(each.loopLag), { class: "number" }),
      cell(each.up && each.started ? duration(Date.now() / 1000 - each.started) : null))));
}
