/**
 * Clients, a page of 100 at a time: the gateway selects and pages, so that 10,000 of them are 100
 * rows here. Pages are read again every few seconds while they are looked at.
 */

import { describeMissing, requestJson } from "./api.js";
import { ask } from "./dialog.js";
import { byId, bytes, cell, clock, count, element, setText, showFacts, showMessage, showRows, updateRows } from "./format.js";
import { Poller } from "./poller.js";

const PAGE_SIZE = 100;
const REFRESH_MS = 3000;
const MAX_PARTITION_ROWS = 500;

export class ClientsView {
  #filter = {};
  #cursors = [""]; // of the pages up to the present one
  #next = null;
  #chosen = null;
  #poller = new Poller((isCurrent) => this.#load(isCurrent), REFRESH_MS);

  constructor() {
    byId("client-filter").addEventListener("submit", (event) => {
      event.preventDefault();
      this.#filter = {};
      for (const [name, value] of new FormData(event.target)) {
        if (value.trim()) this.#filter[name] = value.trim();
      }
      this.#cursors = [""];
      this.#poller.run();
    });
    byId("clients-next").addEventListener("click", () => {
      this.#cursors.push(this.#next);
      this.#poller.run();
    });
    byId("clients-back").addEventListener("click", () => {
      this.#cursors.pop();
      this.#poller.run();
    });
    byId("disconnect-all").addEventListener("click", () => this.#disconnectAll());
  }

  start(about) {
    const select = byId("filter-route"), chosen = select.value;
    select.replaceChildren(
      element("option", { value: "" }, "all"),
      ...about.routes.map((path) => element("option", { value: path }, path)),
    );
    select.value = chosen;
  }

  show() {
    this.#poller.start();
  }

  hide() {
    this.#poller.stop();
  }

  async #load(isCurrent) {
    try {
      const query = new URLSearchParams({ ...this.#filter, limit: PAGE_SIZE });
      const cursor = this.#cursors.at(-1);
      if (cursor) query.set("after", cursor);
      const [page, blocked] = await Promise.all([
        requestJson(`streams?${query}`),
        requestJson("revocations"),
      ]);
      if (!isCurrent()) return; // another page is wanted by now
      this.#showPage(page);
      this.#showBlocked(blocked.revocations);
      if (this.#chosen) await this.#showDetails(this.#chosen);
    } catch (error) {
      if (!isCurrent()) return;
      say(error.message, true);
    }
  }

  #showPage({ streams, next, missing }) {
    this.#next = next && new URL(next, location).searchParams.get("after");
    byId("clients-next").disabled = !this.#next;
    byId("clients-back").disabled = this.#cursors.length < 2;
    byId("disconnect-all").disabled = !Object.keys(this.#filter).length || !streams.length;
    setText("clients-page", `page ${this.#cursors.length}, ${streams.length} clients${describeMissing(missing)}`);
    // A button that has the focus keeps it: its row is replaced under it.
    const focused = document.activeElement?.dataset.action;
    // Bytes are not shown, and change with each heartbeat.
    const rows = streams.map(({ bytes: _, ...rest }) => rest);
    updateRows("client-rows", rows, (each) => this.#buildRow(each));
    if (focused) document.querySelector(`[data-action="${CSS.escape(focused)}"]`)?.focus();
  }

  #buildRow(stream) {
    const identities = Object.entries(stream.identity);
    const name = identities.map(([, identity]) => identity).join(", ") || stream.address;
    const actions = [
      button("Details", `details ${stream.id}`, `Details of ${name}`, () => this.#choose(stream.id)),
      button("Disconnect", `end ${stream.id}`, `Disconnect ${name}`, () => this.#disconnect(stream), "danger"),
    ];
    for (const [guard, identity] of identities) {
      actions.push(
        button("Block", `block ${stream.id} ${guard}`, `Block ${identity}`, () => this.#block(guard, identity), "danger"),
      );
    }
    return element("tr", {},
      element("th", { scope: "row", title: stream.url }, stream.route),
      cell(identities.map(([guard, identity]) => `${identity} (${guard})`).join(", ") || null),
      cell(stream.address), cell(stream.wire), cell(stream.state),
      cell(count(stream.behind), { class: "number" }),
      cell(stream.error && `${stream.error.partition}: ${stream.error.cause}`),
      cell(clock(Date.parse(stream.since) / 1000)),
      cell(stream.worker, { class: "number" }),
      element("td", { class: "actions" }, ...actions));
  }

  #showBlocked(revocations) {
    showRows("blocked-rows", revocations.map((each) =>
      element("tr", {},
        element("th", { scope: "row" }, each.identity),
        cell(each.guard ?? "any"),
        cell(each.until ? clock(Date.parse(each.until) / 1000) : "allowed again"),
        cell(clock(Date.parse(each.since) / 1000)), cell(each.by),
        element("td", { class: "actions" },
          button("Allow", `allow ${each.guard ?? ""} ${each.identity}`, `Allow ${each.identity} again`,
            () => this.#allow(each))))));
  }

  async #disconnect(stream) {
    await this.#act(`streams/${stream.id}`, { method: "DELETE" }, () => `A client of ${stream.route} is disconnected; it may connect again`);
  }

  async #disconnectAll() {
    const words = Object.entries(this.#filter).map(([name, value]) => `${name} ${value}`).join(", ");
    if (!(await ask(`Disconnect all clients with ${words}? They may connect again.`, "Disconnect"))) return;
    const query = new URLSearchParams(this.#filter);
    await this.#act(`streams?${query}`, { method: "DELETE" }, ({ ended }) => `${ended} clients are disconnected`);
  }

  async #block(guard, identity) {
    const answer = await ask(`Block ${identity} (${guard})? All its streams end, and it is refused.`, "Block", true);
    if (!answer) return;
    const body = { identity, guard };
    if (answer.seconds) body.until = Date.now() / 1000 + answer.seconds;
    await this.#act("revocations", { method: "POST", body }, ({ ended }) => `${identity} is blocked; ${ended} streams end`);
  }

  async #allow({ identity, guard }) {
    const query = new URLSearchParams({ identity, ...(guard && { guard }) });
    await this.#act(`revocations?${query}`, { method: "DELETE" }, () => `${identity} is allowed again`);
  }

  async #act(path, options, describe) {
    try {
      const result = await requestJson(path, options); // null of a single stream
      say(describe(result) + describeMissing(result?.missing), Boolean(result?.missing?.length));
    } catch (error) {
      say(error.message, true);
    }
    await this.#poller.run();
  }

  async #choose(id) {
    this.#chosen = id;
    await this.#showDetails(id);
    byId("client-details").scrollIntoView({ block: "nearest" });
  }

  async #showDetails(id) {
    let stream;
    try {
      stream = await requestJson(`streams/${id}`);
    } catch (error) {
      this.#chosen = null;
      byId("client-details").hidden = true;
      if (error.status !== 404) say(error.message, true);
      return;
    }
    byId("client-details").hidden = false;
    showFacts("client-facts", [
      ["URL", stream.url], ["State", stream.state], ["Behind", count(stream.behind)],
      ["Acknowledged", bytes(stream.bytes)], ["Token expires", stream.expires], ["Id", stream.id],
    ]);
    const partitions = (stream.partitions ?? []).slice(0, MAX_PARTITION_ROWS);
    showRows("client-partitions", partitions.map((each) =>
      element("tr", {},
        element("th", { scope: "row" }, `${each.topic} ${each.partition}`),
        cell(each.state), cell(each.cause), cell(each.nextOffset, { class: "number" }),
        cell(each.endOffset, { class: "number" }), cell(count(each.lag), { class: "number" }))));
  }
}

function button(text, action, label, onClick, kind) {
  return element("button", { type: "button", "data-action": action, "aria-label": label, class: kind, click: onClick }, text);
}

const say = (text, isBad) => showMessage("clients-message", text, isBad);
