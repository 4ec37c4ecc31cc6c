/** Gaps, lost and recovered partitions, warnings and errors, as they happen. */

import { byId, clock, element } from "./format.js";

const MAX_INCIDENTS = 300;

export class IncidentsView {
  #incidents = [];
  #isPaused = false;
  #isShown = false;
  #unseen = 0;

  constructor() {
    byId("incident-kind").addEventListener("change", () => this.#showAll());
    byId("incident-pause").addEventListener("click", (event) => {
      this.#isPaused = !this.#isPaused;
      event.target.setAttribute("aria-pressed", this.#isPaused);
      if (!this.#isPaused) this.#showAll();
    });
  }

  show() {
    this.#isShown = true;
    this.#unseen = 0;
    this.#showBadge();
  }

  hide() {
    this.#isShown = false;
  }

  apply(event, isSnapshot) {
    if (!event.incidents && !isSnapshot) return;
    const added = event.incidents ?? [];
    this.#incidents = [...added].reverse().concat(isSnapshot ? [] : this.#incidents).slice(0, MAX_INCIDENTS);
    if (!isSnapshot && !this.#isShown) this.#unseen += added.length;
    this.#showBadge();
    if (this.#isPaused) return;
    if (isSnapshot) this.#showAll();
    else {
      const list = byId("incident-list");
      list.prepend(...added.filter((each) => this.#isWanted(each)).map(buildItem).reverse());
      while (list.children.length > MAX_INCIDENTS) list.lastChild.remove();
    }
  }

  #showAll() {
    byId("incident-list").replaceChildren(
      ...this.#incidents.filter((each) => this.#isWanted(each)).map(buildItem),
    );
  }

  #isWanted(incident) {
    const kinds = byId("incident-kind").value;
    return !kinds || kinds.split(" ").includes(incident.kind);
  }

  #showBadge() {
    const badge = byId("incident-badge");
    badge.hidden = !this.#unseen;
    badge.textContent = String(this.#unseen);
  }
}

function buildItem(incident) {
  return element("li", { "data-kind": incident.kind },
    element("time", { datetime: new Date(incident.at * 1000).toISOString() }, clock(incident.at)),
    element("span", { class: "kind" }, incident.kind),
    element("span", { class: "text" }, element("b", {}, incident.subject), ` ${incident.text}`));
}
