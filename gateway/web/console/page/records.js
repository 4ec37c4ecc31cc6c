/** The newest records of a topic. Kafka is asked when the operator asks. */

import { requestJson } from "./api.js";
import { byId, cell, clock, describeBytes, element, foldHeaders, setText, showMessage, showRows } from "./format.js";
import { Poller } from "./poller.js";

export class RecordsView {
  #poller = new Poller(loadRecords);

  constructor() {
    byId("record-form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.#poller.run();
    });
    showRows("record-rows", []);
  }

  start({ topics }) {
    byId("record-topics").replaceChildren(...topics.map((value) => element("option", { value })));
    if (!byId("record-topic").value && topics.length === 1) byId("record-topic").value = topics[0];
  }
}

async function loadRecords(isCurrent) {
  setText("records-count", "asking Kafka");
  let found = { records: [] }, problem = "", summary = "";
  try {
    found = await requestJson(`console/records?${new URLSearchParams(new FormData(byId("record-form")))}`);
    const read = found.partitions - found.skipped;
    summary = `${found.records.length} newest of ${read} ${read === 1 ? "partition" : "partitions"}`;
    if (found.skipped) summary += `; ${found.skipped} more were not read, choose one`;
  } catch (error) {
    problem = error.message;
  }
  if (!isCurrent()) return;
  showRows("record-rows", found.records.map(buildRow));
  setText("records-count", summary);
  showMessage("records-message", problem, true);
}

function buildRow({ record, problem }) {
  return element("tr", {},
    element("th", { scope: "row", class: "number" }, String(record.partition)),
    cell(record.offset, { class: "number" }),
    cell(record.timestamp < 0 ? null : clock(record.timestamp / 1000)),
    cell(describeBytes(record.key), { class: "mono" }),
    element("td", { class: "wrap" },
      problem ? element("div", { class: "message" }, problem) : "",
      element("div", { class: "mono" }, describeBytes(record.value)),
      foldHeaders(record.headers.map(([name, value]) => [name, describeBytes(value)]))));
}
