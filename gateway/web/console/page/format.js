/** Numbers, sizes and times as people read them, and the elements that show them. */

const UNITS = ["", "k", "M", "G", "T"];
const MAX_VALUE_CHARS = 2000;
const MAX_HEX_BYTES = 64;

export function count(value) {
  if (value == null) return "–";
  if (value < 10_000) return String(Math.round(value * (value < 10 ? 10 : 1)) / (value < 10 ? 10 : 1));
  return scale(value, 1000, UNITS);
}

export function bytes(value) {
  return value == null ? "–" : `${scale(value, 1024, ["B", "KiB", "MiB", "GiB", "TiB"], " ")}`;
}

function scale(value, step, units, space = "") {
  let n = 0;
  while (value >= step && n < units.length - 1) {
    value /= step;
    n += 1;
  }
  return `${value < 10 && n ? value.toFixed(1) : Math.round(value)}${space}${units[n]}`;
}

export function seconds(value) {
  if (value == null) return "–";
  if (value < 0.0995) return `${(value * 1000).toPrecision(2)} ms`;
  if (value < 1) return `${Math.round(value * 1000)} ms`;
  return value < 10 ? `${value.toFixed(1)} s` : duration(value);
}

export function duration(value) {
  if (value == null) return "–";
  const [days, hours, minutes] = [86400, 3600, 60].map((unit) => Math.floor(value / unit));
  if (days) return `${days} d ${hours % 24} h`;
  if (hours) return `${hours} h ${minutes % 60} min`;
  if (minutes) return `${minutes} min ${Math.floor(value % 60)} s`;
  return `${Math.floor(value)} s`;
}

/** A time in seconds since 1970, with the day if it is not today's. */
export function clock(at) {
  if (at == null) return "–";
  const date = new Date(at * 1000);
  const time = date.toLocaleTimeString([], { hour12: false });
  return date.toDateString() === new Date().toDateString() ? time : `${date.toLocaleDateString()} ${time}`;
}

/** An element. Values of `attributes` that are functions are listeners. */
export function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (typeof value === "function") made.addEventListener(key, value);
    else if (value != null && value !== false) made.setAttribute(key, value === true ? "" : value);
  }
  made.append(...children.map((each) => each ?? "–"));
  return made;
}

export function cell(content, attributes = {}) {
  return element("td", attributes, content instanceof Node ? content : String(content ?? "–"));
}

/** A list of names and values under an element. What is null is left out. */
export function showFacts(id, facts) {
  byId(id).replaceChildren(
    ...facts.filter(([, text]) => text != null).map(([name, text]) =>
      element("div", {}, element("dt", {}, name), element("dd", {}, String(text)))),
  );
}

/** Shows the rows of a table, and how many more there are; without any, its `data-empty`. */
export function showRows(id, rows, more = 0) {
  const table = byId(id), note = rows.length ? more > 0 && `and ${more} more` : table.dataset.empty;
  table.replaceChildren(...rows.map((row) => label(table, row)), ...(note ? [buildNote(table, note)] : []));
}

/**
 * Shows items as the rows of a table, and builds and moves only rows that are not there already:
 * a table whose rows are all new is laid out as a whole, which takes 0.1 s for 100 rows. No two
 * items may be equal.
 */
export function updateRows(id, items, build) {
  const table = byId(id), before = rowsOf.get(table) ?? new Map(), after = new Map();
  for (const item of items) {
    const key = JSON.stringify(item);
    after.set(key, before.get(key) ?? label(table, build(item)));
  }
  if (!items.length) after.set("", before.get("") ?? buildNote(table, table.dataset.empty));
  for (const [key, row] of before) if (!after.has(key)) row.remove();
  let place = table.firstElementChild;
  for (const row of after.values()) {
    if (row === place) place = place.nextElementSibling;
    else table.insertBefore(row, place);
  }
  rowsOf.set(table, after);
}

const rowsOf = new WeakMap(); // the rows of a table by the JSON of their items

const headsOf = (table) => table.parentElement.tHead.rows[0].cells;

/** Names the cells of a row as their columns: a phone shows no columns. */
function label(table, row) {
  [...row.cells].forEach((each, n) => (each.dataset.label = headsOf(table)[n].textContent));
  return row;
}

function buildNote(table, text) {
  return element("tr", {}, element("td", { colspan: headsOf(table).length, class: "quiet wrap" }, text));
}

/** A key or a value: text, or the first bytes as hex digits if they are not UTF-8. */
export function describeBytes(value) {
  if (value == null) return "null";
  let text = value;
  if (typeof value !== "string") {
    const data = Uint8Array.from(atob(value.base64), (each) => each.charCodeAt(0));
    try {
      text = new TextDecoder("utf-8", { fatal: true }).decode(data);
    } catch {
      const hex = [...data.slice(0, MAX_HEX_BYTES)].map((each) => each.toString(16).padStart(2, "0"));
      return `${bytes(data.length)}: ${hex.join(" ")}${data.length > MAX_HEX_BYTES ? "…" : ""}`;
    }
  }
  return text.length > MAX_VALUE_CHARS ? `${text.slice(0, MAX_VALUE_CHARS)}… (${text.length} characters)` : text;
}

export function foldHeaders(headers) {
  const lines = headers.map(([name, value]) => `${name}: ${value}`);
  return lines.length ? fold(lines.length === 1 ? "1 header" : `${lines.length} headers`, lines.join("\n")) : "";
}

export function fold(title, text) {
  return element("details", {}, element("summary", {}, title), element("pre", {}, text));
}

export const byId = (id) => document.getElementById(id);

export function setText(id, text) {
  const target = byId(id);
  if (target.textContent !== text) target.textContent = text;
}

/** Shows what became of something, in red if it is bad; hides the place without a text. */
export function showMessage(id, text, isBad = false) {
  const target = byId(id);
  target.hidden = !text;
  target.classList.toggle("good", !isBad);
  setText(id, text);
}
