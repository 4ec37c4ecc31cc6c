/**
 * Dead letters and replays of the sidecar that runs beside the gateway, by its own API. It asks
 * for a token of its own if its guards do not know the operator.
 */

import { requestJson } from "./api.js";
import { ask } from "./dialog.js";
import { byId, bytes, cell, clock, count, describeBytes, element, fold, foldHeaders, setText, showMessage, showRows } from "./format.js";
import { Poller } from "./poller.js";

export class DeadLettersView {
  #shown = []; // the letters in the table
  #of = null; // the group and the topic that they are of
  #hasReplays = false;
  #replays = new Poller((isCurrent) => this.#loadReplays(isCurrent));

  constructor() {
    byId("letter-form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.#of = { group: byId("letter-group").value.trim(), topic: byId("letter-topic").value.trim() };
      say("");
      this.#load();
    });
    byId("letter-group").addEventListener("input", () => this.#offerTopics());
    byId("letters-retry").addEventListener("click", () => this.#retry());
    byId("letters-drop").addEventListener("click", () => this.#drop());
    byId("replays-refresh").addEventListener("click", () => this.#replays.run());
    showRows("letter-rows", []);
  }

  start({ sidecar }) {
    byId("letters").hidden = !sidecar.deadLetters;
    byId("replays").hidden = !sidecar.replays;
    this.#hasReplays = sidecar.replays;
    this.groups = sidecar.groups;
    byId("letter-groups").replaceChildren(...this.groups.map(({ group }) => element("option", { value: group })));
    if (!byId("letter-group").value && this.groups.length === 1) byId("letter-group").value = this.groups[0].group;
    this.#offerTopics();
  }

  show() {
    if (this.#hasReplays) this.#replays.run();
  }

  hide() {
    this.#replays.stop();
  }

  #offerTopics() {
    const topics = this.groups.find(({ group }) => group === byId("letter-group").value)?.topics ?? [];
    byId("letter-topics").replaceChildren(...topics.map((value) => element("option", { value })));
    if (topics.length === 1) byId("letter-topic").value = topics[0];
  }

  async #load() {
    const wanted = this.#of;
    setText("letters-count", "asking the sidecar");
    try {
      const letters = await call(`console/dead-letters?${new URLSearchParams(wanted)}`);
      if (wanted !== this.#of) return;
      this.#showLetters(letters);
    } catch (error) {
      if (wanted !== this.#of) return;
      this.#showLetters([]);
      setText("letters-count", "");
      byId("letters-retry").disabled = true;
      say(error.message, true);
    }
  }

  #showLetters(letters) {
    this.#shown = letters;
    byId("letters-retry").disabled = false;
    byId("letters-drop").disabled = !letters.length;
    setText("letters-count", letters.length
      ? `the next ${letters.length} of ${this.#of.group} in ${this.#of.topic}`
      : `no dead letters of ${this.#of.group} wait in ${this.#of.topic}`);
    showRows("letter-rows", letters.map(buildRow));
  }

  async #retry() {
    const { group, topic } = this.#of;
    const isLast = byId("letters-last").checked;
    const rest = isLast ? " What fails again is given up." : " What fails again stays a dead letter.";
    if (!(await ask(`Send the next dead letters of ${topic} to the back end of ${group}?${rest}`, "Retry"))) return;
    const query = new URLSearchParams({ group, topic, lastretry: isLast });
    await this.#act(`console/dead-letters/retry?${query}`, { method: "POST" },
      ({ processed, returned, parked, error }) =>
        `${processed} processed, ${returned} failed again, ${parked} given up${error ? `; ${error}` : ""}`);
  }

  async #drop() {
    const { group, topic } = this.#of;
    const question = `Give up the ${this.#shown.length} dead letters that are shown? ` +
      `${group} skips them from then on; the topic keeps them for its retention.`;
    if (!(await ask(question, "Drop"))) return;
    const last = new Map();
    for (const { deadLetter } of this.#shown) {
      last.set(deadLetter.partition, Math.max(last.get(deadLetter.partition) ?? 0, deadLetter.offset));
    }
    const offsets = [...last].map(([partition, offset]) => ({ partition, offset }));
    const dropped = this.#shown.length;
    await this.#act("console/dead-letters/drop", { method: "POST", body: { group, topic, offsets } },
      () => `${dropped} dropped`);
  }

  async #act(path, options, describe) {
    try {
      say(describe(await call(path, options)));
    } catch (error) {
      say(error.message, true);
    }
    await this.#load();
  }

  async #loadReplays(isCurrent) {
    try {
      const replays = await call("console/replays");
      if (!isCurrent()) return;
      sayOfReplays("");
      showRows("replay-rows", replays.map((each) => this.#buildReplay(each)));
    } catch (error) {
      if (isCurrent()) sayOfReplays(error.message);
    }
  }

  #buildReplay(replay) {
    const target = replay.destinationTopic ?? `the back end of ${replay.consumerGroup}`;
    const actions = replay.state === "running"
      ? [element("button", {
          type: "button", class: "danger", "aria-label": `Cancel the replay of ${replay.topic} to ${target}`,
          click: () => this.#cancel(replay),
        }, "Cancel")]
      : [];
    return element("tr", { class: replay.error ? "bad" : null },
      element("th", { scope: "row" }, replay.topic), cell(target), cell(replay.state),
      cell(`${Math.round(100 * replay.progress)} %`, { class: "number" }),
      cell(`${count(replay.records)} (${bytes(replay.bytes)})`, { class: "number" }),
      cell(count(replay.deadLetters), { class: "number" }),
      cell(clock(Date.parse(replay.updatedAt) / 1000)), cell(replay.error, { class: "wrap" }),
      element("td", { class: "actions" }, ...actions));
  }

  async #cancel({ id, topic }) {
    if (!(await ask(`Cancel the replay of ${topic}? What it has delivered stays delivered.`, "Cancel the replay"))) return;
    try {
      await call(`console/replays/${encodeURIComponent(id)}`, { method: "DELETE" });
    } catch (error) {
      sayOfReplays(error.message);
      return;
    }
    await this.#replays.run();
  }
}

/** A request to the sidecar, with its token if one was entered. */
function call(path, options = {}) {
  const token = byId("letter-token").value.trim();
  const headers = token ? { "Gateway-Stream-Authorization": `Bearer ${token}` } : {};
  return requestJson(path, { ...options, headers });
}

function buildRow(letter) {
  const [reason, ...trace] = (letter.stacktrace ?? "").trim().split("\n");
  return element("tr", {},
    element("th", { scope: "row" }, `${letter.topic} ${letter.partition}, offset ${letter.offset}`),
    cell(clock(letter.deadLetter.timestamp / 1000)), cell(letter.retries, { class: "number" }),
    element("td", { class: "wrap" }, reason, trace.length ? fold("trace", trace.join("\n")) : ""),
    element("td", { class: "wrap" },
      element("div", { class: "mono" }, `key ${describeBytes(letter.key && { base64: letter.key })}`),
      element("div", { class: "mono" }, describeBytes(letter.value && { base64: letter.value })),
      foldHeaders(Object.entries(letter.headers ?? {}).map(([name, value]) => [name, [value].flat().join(", ")]))));
}

const say = (text, isBad) => showMessage("letters-message", text, isBad);
const sayOfReplays = (text) => showMessage("replays-message", text, true);
