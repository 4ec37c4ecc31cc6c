/**
 * The grid of partitions: the names of topics, each before the cells of its partitions. Only the
 * lines in sight are elements. The arrow keys move one cell in the tab order (ARIA Authoring
 * Practices, grid).
 */

import { clock, count, element } from "./format.js";
import { TROUBLED } from "./partitions.js";

const UNIT_PX = 30; // the height of a line, and the width of a column
const SPARE_LINES = 6, PAGE_LINES = 10, NAME_COLUMNS = 7, MIN_COLUMNS = 8;
const GLYPHS = { leaderless: "✕", recovering: "!", stalled: "…", resolving: "?" };

export class PartitionGrid {
  #container;
  #space = element("div", { class: "grid-space", role: "rowgroup" });
  #partitions;
  #onChoose;
  #lines = []; // of items: { column, topic, count } for a name, { column, key } for a cell
  #place = new Map(); // key to [line, item]
  #rendered = new Map(); // line number to its element
  #columns = MIN_COLUMNS;
  #nameColumns = 1;
  #chosen = null;
  #isDue = false;

  constructor(container, partitions, onChoose) {
    this.#container = container;
    this.#partitions = partitions;
    this.#onChoose = onChoose;
    container.append(this.#space);
    container.addEventListener("scroll", () => this.#schedule(), { passive: true });
    container.addEventListener("keydown", (event) => this.#onKey(event));
    container.addEventListener("click", (event) => this.#onPick(event));
    container.addEventListener("focusin", (event) => this.#onPick(event));
    container.addEventListener("pointerover", ({ target }) => {
      // Not before it is needed: 1,000 cells may change at once.
      if (target.classList.contains("cell")) target.title = target.ariaLabel;
    });
    new ResizeObserver(() => this.#onResize()).observe(container);
  }

  /** Lays the partitions out anew: some came or went, or others are wanted. */
  layOut(isWanted) {
    this.isWanted = isWanted ?? this.isWanted ?? (() => true);
    const topics = new Map();
    for (const row of this.#partitions.values()) {
      if (!this.isWanted(row)) continue;
      if (!topics.has(row.topicName)) topics.set(row.topicName, []);
      topics.get(row.topicName).push(row);
    }
    this.#lines = [];
    this.#place.clear();
    this.#nameColumns = Math.min(NAME_COLUMNS, Math.floor(this.#columns / 2));
    let column = Infinity; // the next free one of the last line
    const add = (item, width) => {
      if (column + width > this.#columns) {
        this.#lines.push([]);
        column = 0;
      }
      this.#lines.at(-1).push({ ...item, column });
      column += width;
    };
    for (const name of [...topics.keys()].sort()) {
      const rows = topics.get(name).sort((one, other) => one.partition - other.partition);
      // A topic that does not fit into the rest of a line begins another one.
      if (column + this.#nameColumns + rows.length > this.#columns) column = Infinity;
      add({ topic: name, count: rows.length }, this.#nameColumns);
      for (const { key } of rows) {
        add({ key }, 1);
        this.#place.set(key, [this.#lines.length - 1, this.#lines.at(-1).length - 1]);
      }
      column += 1;
    }
    if (!this.#place.has(this.#chosen)) this.#chosen = this.#place.keys().next().value ?? null;
    this.#container.setAttribute("aria-rowcount", this.#lines.length);
    this.#container.setAttribute("aria-colcount", this.#columns);
    this.#container.hidden = !this.#lines.length;
    this.#space.style.height = `${this.#lines.length * UNIT_PX}px`;
    for (const line of this.#rendered.values()) line.remove();
    this.#rendered.clear();
    this.render();
  }

  /** Shows the present states of the partitions in sight. */
  render() {
    const top = this.#container.scrollTop, height = this.#container.clientHeight;
    const first = Math.max(0, Math.floor(top / UNIT_PX) - SPARE_LINES);
    const last = Math.min(this.#lines.length, Math.ceil((top + height) / UNIT_PX) + SPARE_LINES);
    for (const [number, line] of this.#rendered) {
      const hasFocus = line.contains(document.activeElement);
      if ((number < first || number >= last) && !hasFocus) {
        line.remove();
        this.#rendered.delete(number);
      }
    }
    for (let number = first; number < last; number += 1) {
      if (!this.#rendered.has(number)) this.#add(number);
    }
    for (const [number, line] of this.#rendered) {
      this.#lines[number].forEach(({ key }, n) => {
        if (key !== undefined) updateCell(line.children[n], this.#partitions.get(key));
      });
    }
    this.#updateTabOrder();
  }

  #schedule() {
    if (this.#isDue) return;
    this.#isDue = true;
    requestAnimationFrame(() => {
      this.#isDue = false;
      this.render();
    });
  }

  #onResize() {
    const columns = Math.max(MIN_COLUMNS, Math.floor((this.#container.clientWidth - 16) / UNIT_PX));
    if (columns !== this.#columns) {
      this.#columns = columns;
      this.layOut();
    } else {
      this.#schedule();
    }
  }

  #add(number) {
    const line = element("div", { role: "row", class: "grid-line", "aria-rowindex": number + 1 });
    line.style.transform = `translateY(${number * UNIT_PX}px)`;
    for (const { column, key, topic, count: size } of this.#lines[number]) {
      const item = key !== undefined
        ? element("span", { role: "gridcell", class: "cell", tabindex: -1, "aria-colindex": column + 1 })
        : element("span", {
            role: "rowheader", class: "grid-topic", title: topic,
            "aria-colindex": column + 1, "aria-colspan": this.#nameColumns,
          }, topic, element("span", { class: "quiet" }, ` ${size}`));
      if (key !== undefined) item.dataset.key = key;
      else item.style.width = `${this.#nameColumns * UNIT_PX - 6}px`;
      item.style.left = `${column * UNIT_PX}px`;
      line.append(item);
    }
    // In the order of the lines, for readers that follow the document.
    const later = [...this.#rendered.keys()].filter((each) => each > number);
    const next = later.length ? this.#rendered.get(Math.min(...later)) : null;
    this.#space.insertBefore(line, next);
    this.#rendered.set(number, line);
  }

  #updateTabOrder() {
    const old = this.#space.querySelector("[tabindex='0']");
    const chosen = this.#find(this.#chosen) ?? this.#space.querySelector(".cell");
    if (old !== chosen) {
      old?.setAttribute("tabindex", -1);
      chosen?.setAttribute("tabindex", 0);
    }
  }

  #find(key) {
    const place = this.#place.get(key);
    return place && this.#rendered.get(place[0])?.children[place[1]];
  }

  #onPick(event) {
    const key = event.target.closest?.(".cell")?.dataset.key;
    if (key !== undefined) this.#choose(key);
  }

  #choose(key) {
    this.#chosen = key;
    this.#updateTabOrder();
    this.#onChoose(key);
  }

  #onKey(event) {
    const place = this.#place.get(this.#chosen);
    if (!place || event.ctrlKey || event.metaKey || event.altKey) return;
    const keys = [...this.#place.keys()];
    const moves = {
      ArrowRight: () => keys[Math.min(keys.length - 1, keys.indexOf(this.#chosen) + 1)],
      ArrowLeft: () => keys[Math.max(0, keys.indexOf(this.#chosen) - 1)],
      ArrowDown: () => this.#findBelow(place, 1),
      ArrowUp: () => this.#findBelow(place, -1),
      PageDown: () => this.#findBelow(place, PAGE_LINES),
      PageUp: () => this.#findBelow(place, -PAGE_LINES),
      Home: () => keys[0],
      End: () => keys.at(-1),
    };
    const move = moves[event.key];
    if (!move) return;
    event.preventDefault();
    const key = move();
    this.#scrollTo(this.#place.get(key)[0]);
    this.render();
    this.#find(key).focus({ preventScroll: true });
  }

  /** The key that is nearest so many lines below, or as far as there are any. */
  #findBelow([line, item], distance) {
    const { column } = this.#lines[line][item];
    const target = this.#lines[Math.max(0, Math.min(this.#lines.length - 1, line + distance))];
    const distanceOf = (each) => Math.abs(each.column - column);
    return target
      .filter(({ key }) => key !== undefined)
      .reduce((best, each) => (distanceOf(each) < distanceOf(best) ? each : best)).key;
  }

  #scrollTo(line) {
    const top = line * UNIT_PX, { scrollTop, clientHeight } = this.#container;
    if (top < scrollTop + UNIT_PX) this.#container.scrollTop = Math.max(0, top - UNIT_PX);
    else if (top + 2 * UNIT_PX > scrollTop + clientHeight) {
      this.#container.scrollTop = top + 2 * UNIT_PX - clientHeight;
    }
  }
}

const shown = new WeakMap(); // the row that a cell shows; a changed partition is another row

function updateCell(cell, row) {
  const before = shown.get(cell);
  if (before === row) return;
  shown.set(cell, row);
  cell.ariaLabel = describe(row);
  if (before?.state === row.state) return;
  cell.dataset.state = row.state;
  const text = GLYPHS[row.state] ?? String(row.partition);
  // A new text is laid out, even if it is the same.
  if (cell.textContent !== text) cell.textContent = text;
}

function describe(row) {
  const parts = [`${row.topicName} ${row.partition}`, row.state];
  if (row.cause) parts.push(row.cause);
  if (TROUBLED.has(row.state)) parts.push(`since ${clock(row.since)}`);
  if (row.lag) parts.push(`lag ${count(row.lag)}`);
  return parts.join(", ");
}
