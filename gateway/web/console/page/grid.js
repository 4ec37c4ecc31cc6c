/**
 * The grid of partitions: topics as headings, partitions as cells, of which only the lines in sight
 * are elements. The arrow keys move one cell in the tab order (ARIA Authoring Practices, grid).
 */

import { clock, count, element } from "./format.js";
import { TROUBLED } from "./partitions.js";

const LINE_PX = 30, CELL_PX = 30, SPARE_LINES = 6, PAGE_LINES = 10;
const GLYPHS = { leaderless: "✕", recovering: "!", stalled: "…", resolving: "?" };

export class PartitionGrid {
  #container;
  #space = element("div", { class: "grid-space", role: "rowgroup" });
  #partitions;
  #onChoose;
  #lines = []; // { topic, count } for a heading, { keys } for cells
  #place = new Map(); // key to [line, column]
  #rendered = new Map(); // line number to its element
  #columns = 1;
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
    for (const name of [...topics.keys()].sort()) {
      const rows = topics.get(name).sort((one, other) => one.partition - other.partition);
      this.#lines.push({ topic: name, count: rows.length });
      for (let start = 0; start < rows.length; start += this.#columns) {
        const keys = rows.slice(start, start + this.#columns).map((row) => row.key);
        keys.forEach((key, column) => this.#place.set(key, [this.#lines.length, column]));
        this.#lines.push({ keys });
      }
    }
    if (!this.#place.has(this.#chosen)) this.#chosen = this.#place.keys().next().value ?? null;
    this.#container.setAttribute("aria-rowcount", this.#lines.length);
    this.#container.setAttribute("aria-colcount", this.#columns);
    this.#container.hidden = !this.#lines.length;
    this.#space.style.height = `${this.#lines.length * LINE_PX}px`;
    for (const line of this.#rendered.values()) line.remove();
    this.#rendered.clear();
    this.render();
  }

  /** Shows the present states of the partitions in sight. */
  render() {
    const top = this.#container.scrollTop, height = this.#container.clientHeight;
    const first = Math.max(0, Math.floor(top / LINE_PX) - SPARE_LINES);
    const last = Math.min(this.#lines.length, Math.ceil((top + height) / LINE_PX) + SPARE_LINES);
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
      const { keys } = this.#lines[number];
      keys?.forEach((key, column) => updateCell(line.children[column], this.#partitions.get(key)));
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
    const columns = Math.max(1, Math.floor((this.#container.clientWidth - 16) / CELL_PX));
    if (columns !== this.#columns) {
      this.#columns = columns;
      this.layOut();
    } else {
      this.#schedule();
    }
  }

  #add(number) {
    const { topic, count: size, keys } = this.#lines[number];
    const line = element("div", { role: "row", class: "grid-line", "aria-rowindex": number + 1 });
    line.style.transform = `translateY(${number * LINE_PX}px)`;
    if (keys) {
      keys.forEach((key, column) => {
        const cell = element("span", { role: "gridcell", class: "cell", tabindex: -1, "aria-colindex": column + 1 });
        cell.dataset.key = key;
        line.append(cell);
      });
    } else {
      line.append(
        element("span", { role: "rowheader", class: "grid-topic", "aria-colspan": this.#columns },
          topic, element("span", { class: "quiet" }, ` ${size}`)),
      );
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

  /** The key so many lines of cells below, or as far as there are any. */
  #findBelow([line, column], distance) {
    const step = Math.sign(distance);
    let found = line;
    for (let next = line + step, left = Math.abs(distance); left && this.#lines[next]; next += step) {
      if (!this.#lines[next].keys) continue;
      found = next;
      left -= 1;
    }
    const { keys } = this.#lines[found];
    return keys[Math.min(column, keys.length - 1)];
  }

  #scrollTo(line) {
    const top = line * LINE_PX, { scrollTop, clientHeight } = this.#container;
    if (top < scrollTop + LINE_PX) this.#container.scrollTop = Math.max(0, top - LINE_PX);
    else if (top + 2 * LINE_PX > scrollTop + clientHeight) {
      this.#container.scrollTop = top + 2 * LINE_PX - clientHeight;
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
