/**
 * Consumer groups of Kafka, a page of 100 at a time, and one of them with its members and its lag.
 * Kafka is asked when the section is opened, and again when the operator asks.
 */

import { requestJson } from "./api.js";
import { byId, cell, count, element, setText, showFacts, showMessage, showRows } from "./format.js";
import { Poller } from "./poller.js";

export class GroupsView {
  #starts = [""]; // names after which the pages begin, up to the present one
  #next = null;
  #chosen = null;
  #poller = new Poller((isCurrent) => this.#load(isCurrent));

  constructor() {
    byId("group-filter").addEventListener("submit", (event) => {
      event.preventDefault();
      this.#starts = [""];
      this.#poller.run();
    });
    byId("group-cluster").addEventListener("change", () => {
      this.#starts = [""];
      this.#chosen = null;
      this.#poller.run();
    });
    byId("groups-next").addEventListener("click", () => {
      this.#starts.push(this.#next);
      this.#poller.run();
    });
    byId("groups-back").addEventListener("click", () => {
      this.#starts.pop();
      this.#poller.run();
    });
    byId("groups-refresh").addEventListener("click", () => this.#poller.run());
  }

  show() {
    this.#poller.run();
  }

  hide() {
    this.#poller.stop();
  }

  async #load(isCurrent) {
    setText("groups-page", "asking Kafka");
    try {
      const query = this.#buildQuery({ search: byId("group-search").value.trim(), after: this.#starts.at(-1) });
      const page = await requestJson(`console/groups?${query}`);
      if (!isCurrent()) return;
      this.#showPage(page);
      say("");
    } catch (error) {
      if (!isCurrent()) return;
      setText("groups-page", "");
      say(error.message);
    }
    if (this.#chosen !== null && isCurrent()) await this.#showGroup(this.#chosen);
  }

  #buildQuery(params) {
    const query = new URLSearchParams(params);
    const cluster = byId("group-cluster").value;
    if (cluster) query.set("cluster", cluster);
    return query;
  }

  #showPage({ groups, total, next, cluster, clusters }) {
    this.#next = next;
    byId("groups-next").disabled = next === null;
    byId("groups-back").disabled = this.#starts.length < 2;
    const select = byId("group-cluster");
    byId("group-cluster-field").hidden = clusters.length < 2;
    if (select.children.length !== clusters.length) {
      select.replaceChildren(...clusters.map((name) => element("option", { value: name }, name || "Kafka")));
    }
    select.value = cluster;
    setText("groups-page", `page ${this.#starts.length}, ${groups.length} of ${total} groups`);
    showRows("group-rows", groups.map((each) =>
      element("tr", {},
        element("th", { scope: "row" }, each.group),
        cell(each.state || null), cell(each.type || null), cell(each.protocol || null),
        element("td", { class: "actions" },
          element("button", {
            type: "button", "aria-label": `Members and lag of ${each.group}`, click: () => this.#choose(each.group),
          }, "Members and lag")))));
  }

  async #choose(group) {
    this.#chosen = group;
    await this.#showGroup(group);
    byId("group-details").scrollIntoView({ block: "nearest" });
  }

  async #showGroup(group) {
    let found;
    try {
      found = await requestJson(`console/group?${this.#buildQuery({ group })}`);
    } catch (error) {
      if (this.#chosen !== group) return;
      byId("group-details").hidden = true;
      say(error.message);
      return;
    }
    if (this.#chosen !== group) return; // another one is wanted by now
    say("");
    byId("group-details").hidden = false;
    setText("group-details-title", `Group ${found.group}`);
    showFacts("group-facts", [
      ["State", found.state], ["Type", found.type], ["Assignor", found.assignor],
      ["Lag", found.lag === null ? null : count(found.lag)],
      ["Members", found.memberCount], ["Partitions", found.partitionCount],
    ]);
    const names = nameMembers(found.members);
    showRows("group-members", found.members.map((each) =>
      element("tr", {},
        element("th", { scope: "row" }, each.clientId), cell(each.instanceId), cell(each.host),
        cell(each.partitions, { class: "number" }), cell(each.id, { class: "mono" }))),
      found.memberCount - found.members.length);
    showRows("group-partitions", found.partitions.map((each) =>
      element("tr", {},
        element("th", { scope: "row" }, `${each.topic} ${each.partition}`),
        cell(each.committed, { class: "number" }), cell(each.end, { class: "number" }),
        cell(each.lag === null ? null : count(each.lag), { class: "number" }),
        cell(each.owner && (names.get(each.owner) ?? each.owner)))),
      found.partitionCount - found.partitions.length);
  }
}

/** The names of members by their ids: the client's, if no other member has the same. */
function nameMembers(members) {
  const counts = new Map();
  for (const { clientId } of members) counts.set(clientId, (counts.get(clientId) ?? 0) + 1);
  return new Map(members.map(({ id, instanceId, clientId }) =>
    [id, instanceId ?? (counts.get(clientId) === 1 ? clientId : id)]));
}

const say = (text) => showMessage("groups-message", text, true);
