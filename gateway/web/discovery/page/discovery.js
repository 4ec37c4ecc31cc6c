"use strict";

const MAX_EVENTS = 200;          // in a log
const MAX_EVENT_LENGTH = 4000;   // characters
const MAX_OPEN_STREAMS = 4;      // of the six connections that a browser has for HTTP/1.1
const COUNT_INTERVAL_MS = 2000;
const CONTROL_EVENTS = ["begin", "ready", "partitions-ready", "partitions-error", "position", "gap", "delete", "snapshot-end", "challenge", "end"];

const root = new URL(".", document.baseURI);  // also right where the gateway is mounted below a path
const running = new Set();

const createElement = (tag, className, text = "") => Object.assign(document.createElement(tag), { className, textContent: text });
const quoteForShell = (text) => `'${text.replaceAll("'", "'\\''")}'`;

/* The card of one stream. Its fields determine its command lines, and the stream that is tried. */
class Card {
  constructor(article) {
    Object.assign(this, { article, form: article.querySelector("form"), source: null, count: 0, newEvents: [] });
    this.button = article.querySelector(".try");
    this.state = this.form.querySelector(".state");
    this.inputs = [...this.form.querySelectorAll("input")];
    this.lines = [...article.querySelectorAll(".lines li")];
    for (const line of this.lines) this.addCopyButton(line);
    this.form.addEventListener("input", () => this.updateLines());
    this.form.addEventListener("submit", (event) => {
      event.preventDefault();
      if (this.button) this.source ? this.stop("stopped") : this.start();
    });
    if (this.button) this.button.hidden = false;
    this.updateLines();
  }

  /* query: parameters of a command line; a field of the same name overrides them. */
  buildUrl(query = "") {
    const placeholder = (name) => `{${name}}`;
    let path = this.article.dataset.path;
    const parameters = new URLSearchParams(query);
    const missing = [];
    for (const { name, value, required, dataset } of this.inputs) {
      if (dataset.in === "path") {
        path = path.replace(placeholder(name), () => (value ? encodeURIComponent(value) : placeholder(name)));
      } else if (value) parameters.set(name, value);
      else if (required) missing.push(`${name}=${placeholder(name)}`);
    }
    const search = [...missing, parameters].map(String).filter(Boolean).join("&");
    return root.href.replace(/\/$/, "") + path + (search && `?${search}`);
  }

  updateLines() {
    for (const line of this.lines) {
      const { command, query, transport, snippet } = line.dataset;
      if (snippet) {
        line.querySelector("code").textContent = snippet.replace("__URL__", () => JSON.stringify(this.buildUrl()));
        continue;
      }
      const url = this.buildUrl(query);
      line.querySelector("code").textContent = `${command} ${quoteForShell(transport === "websocket" ? url.replace(/^http/, "ws") : url)}`;
    }
  }

  addCopyButton(line) {
    const button = line.querySelector(".copy");
    const text = line.querySelector("code");
    button.hidden = false;
    button.setAttribute("aria-label", `Copy: ${line.querySelector("span").textContent}`);
    button.addEventListener("click", async () => {
      try {
        await navigator.clipboard.writeText(text.textContent);
        button.textContent = "Copied";
      } catch {             // no permission, or plain HTTP from another machine
        getSelection().selectAllChildren(text);
        button.textContent = "Selected";
      }
      setTimeout(() => { button.textContent = "Copy"; }, 1500);
    });
  }

  start() {
    if (running.size >= MAX_OPEN_STREAMS) [...running][0].stop("stopped, another one was started");
    running.add(this);
    this.log?.remove();
    this.log = createElement("ol", "log");
    this.log.tabIndex = 0;
    Object.entries({ role: "log", "aria-live": "off", "aria-label": `Events of ${this.article.dataset.path}` })
      .forEach(([name, value]) => this.log.setAttribute(name, value));
    this.form.after(this.log);
    this.count = 0;
    this.button.textContent = "Stop";
    this.showState("connecting", "connecting");
    const source = (this.source = new EventSource(this.buildUrl()));
    source.onopen = () => this.showState("live", "live");
    source.onmessage = (event) => this.addEvent("record", event.data);
    for (const name of CONTROL_EVENTS) source.addEventListener(name, (event) => this.addEvent(name, event.data));
    source.onerror = (event) => {
      if (this.source !== source) return;
      if (event.data !== undefined) return this.addError(event.data);  // the gateway's own event
      if (source.readyState === EventSource.CLOSED) this.showRefusal();
      else this.showState("connecting", "reconnecting");
    };
  }

  stop(text, state = "stopped") {
    running.delete(this);
    this.source?.close();
    this.source = null;
    this.button.textContent = "Try it";
    this.showState(state, text);
  }

  /* Request the stream once more to show why it was refused: an EventSource does not say it. */
  async showRefusal() {
    const url = this.buildUrl();
    this.stop("refused", "refused");
    try {
      const answer = await fetch(url, { headers: { Accept: "application/json" } });
      if (!answer.ok) this.showState("refused", `refused: ${(await answer.json()).detail}`);
      else answer.body?.cancel();
    } catch { /* "refused" stays */ }
  }

  /* An error about no partition refuses the stream. */
  addError(data) {
    const { partition, message } = JSON.parse(data);
    if (partition === undefined) this.stop(`refused: ${message}`, "refused");
    else this.addEvent("error", data);
  }

  addEvent(name, data) {
    if (!this.source) return;
    if (name === "record") this.count++;
    this.newEvents.push([name, data]);
    if (this.newEvents.length > MAX_EVENTS) this.newEvents.shift();
    if (this.newEvents.length === 1) requestAnimationFrame(() => this.draw());
  }

  draw() {
    const atEnd = this.log.scrollHeight - this.log.scrollTop - this.log.clientHeight < 40;
    for (const [name, data] of this.newEvents.splice(0)) {
      const row = createElement("li", name === "record" ? "record" : "control");
      row.dataset.event = name;
      row.append(createElement("span", "event", name), createElement("code", "", data.length > MAX_EVENT_LENGTH ? `${data.slice(0, MAX_EVENT_LENGTH)} …` : data));
      this.log.append(row);
    }
    while (this.log.children.length > MAX_EVENTS) this.log.firstChild.remove();
    if (atEnd) this.log.scrollTop = this.log.scrollHeight;
    this.scheduleCount();
  }

  /* Show the count, but not often: a screen reader reads it out each time. */
  scheduleCount() {
    this.countTimer ??= setTimeout(() => {
      this.countTimer = undefined;
      if (this.source) this.showState("live", `live, ${this.count} record${this.count === 1 ? "" : "s"}`);
    }, COUNT_INTERVAL_MS);
  }

  showState(state, text) {
    this.state.dataset.state = state;
    if (this.state.textContent !== text) this.state.textContent = text;
  }
}

for (const article of document.querySelectorAll(".stream")) new Card(article);

const search = document.getElementById("search");
search.addEventListener("input", () => {
  const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
  const streams = [...document.querySelectorAll(".stream")];
  for (const stream of streams) {
    const text = `${stream.dataset.path} ${stream.querySelector(".facts").textContent}`.toLowerCase();
    stream.hidden = !words.every((word) => text.includes(word));
  }
  const count = streams.filter((stream) => !stream.hidden).length;
  document.getElementById("found").textContent = words.length ? `${count} of ${streams.length}` : "";
});
