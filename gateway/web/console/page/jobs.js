/** Spark jobs by the progress that they write to a topic: the last batch, alerts, and findings. */

import { requestJson } from "./api.js";
import { byId, cell, clock, count, duration, element, seconds, setText, showMessage, showRows } from "./format.js";
import { Poller } from "./poller.js";

const REFRESH_MS = 10_000;

export class JobsView {
  #poller = new Poller(loadReport, REFRESH_MS);

  constructor() {
    byId("jobs-refresh").addEventListener("click", () => this.#poller.run());
  }

  show() {
    this.#poller.start();
  }

  hide() {
    this.#poller.stop();
  }
}

async function loadReport(isCurrent) {
  try {
    const report = await requestJson("console/jobs");
    if (!isCurrent()) return;
    showReport(report);
    say("");
  } catch (error) {
    if (isCurrent()) say(error.message);
  }
}

function showReport({ topic, records, jobs }) {
  setText("jobs-source", `from the latest ${records} records of ${topic}`);
  showRows("job-rows", jobs.map(buildRow));
  byId("job-findings").replaceChildren(...jobs.flatMap(buildFindings));
}

function buildRow({ job, type, batch, alerts }) {
  const names = Object.keys(alerts);
  if (batch === null) {
    return element("tr", {},
      element("th", { scope: "row" }, job), cell(type),
      element("td", { colspan: 7, class: "quiet" }, "no progress in the topic"));
  }
  return element("tr", { class: names.length ? "bad" : null },
    element("th", { scope: "row" }, job), cell(type),
    cell(`${clock(batch.endedAt)} (${duration(Math.max(0, Date.now() / 1000 - batch.endedAt))} ago)`),
    number(batch.rowsPerSecond === null ? null : `${count(batch.rowsPerSecond)}/s`),
    number(seconds(batch.seconds)), number(count(batch.behind)), number(count(batch.late)),
    number(count(batch.invalid)), cell(names.join(", ") || "none"));
}

function number(text) {
  return cell(text, { class: "number" });
}

/** What is wrong with a job: alerts first, then what the doctor found. Nothing without records. */
function buildFindings({ job, alerts, causes, unseen, judged, problem }) {
  const items = Object.entries(alerts).map(([name, message]) =>
    element("li", {}, element("b", {}, `Alert ${name}: `), message));
  if (problem) items.push(element("li", {}, problem));
  for (const cause of causes) {
    items.push(
      element("li", {},
        element("b", {}, `${cause.title}: ${cause.seconds.toFixed(1)} s per batch`),
        ...cause.evidence.map((line) => element("div", { class: "note" }, line)),
        element("div", {}, "Change ", element("code", {}, cause.settings.join(", ")), `. ${cause.advice}`)));
  }
  if (judged && !items.length) items.push(element("li", {}, "No cause found: the job is healthy, as far as these records show"));
  const reasons = [...new Set(Object.values(unseen))];
  if (reasons.length) items.push(element("li", { class: "quiet" }, `Not all is judged: ${reasons.join("; ")}`));
  if (!items.length) return [];
  return [element("h3", {}, `Findings of ${job}`), element("ul", { class: "findings" }, ...items)];
}

const say = (text) => showMessage("jobs-message", text, true);
