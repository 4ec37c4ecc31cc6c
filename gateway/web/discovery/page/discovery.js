"use strict";

const KEPT = 200;         // events in a log
const SHOWN = 4000;       // characters of one event
const OPEN_AT_ONCE = 4;   // of the six connections that a browser has for HTTP/1.1
const CONTROL = ["begin", "ready", "position", "gap", "delete", "snapshot-end", "challenge", "end"];

const root = new URL(".", document.baseURI);  // also where the gateway is mounted below a path
const running = new Set();

const element = (tag, className, text = "") => Object.assign(document.createElement(tag), { className, textContent: text });
const quoted = (text) => `'${text.replaceAll("'", "'\\''")}'`;

/* One card: what its fields say becomes its lines, and its stream while it is tried. */
class Card {
  constructor(article) {
    Object.assign(this, { article, form: article.querySelector("form"), source: null, count: 0, news: [] });
    this.button = article.querySelector(".try");
    this.state = this.form.querySelector(".state");
    this.inputs = [...this.form.querySelectorAll("input")];
    this.lines = [...article.querySelectorAll(".lines li")];
    for (const line of this.lines) this.copies(line);
    this.form.addEventListener("input", () => this.write());
    this.form.addEventListener("submit", (event) => {
      event.preventDefault();
      if (this.button) this.source ? this.stop("stopped") : this.start();
    });
    if (this.button) this.button.hidden = false;
    this.write();
  }

  /* query: what a line asks for besides; a field beats it. */
  url(query = "") {
    const left = (name) => `{${name}}`;
    let path = this.article.dataset.path;
    const asked = new URLSearchParams(query);
    const blanks = [];
    for (const { name, value, required, dataset } of this.inputs) {
      if (dataset.in === "path") path = path.replace(left(name), () => (value ? encodeURIComponent(value) : left(name)));
      else if (value) asked.set(name, value);
      else if (required) blanks.push(`${name}=${left(name)}`);
    }
    const search = [...blanks, asked].map(String).filter(Boolean).join("&");
    return root.href.replace(/\/$/, "") + path + (search && `?${search}`);
  }

  write() {
    for (const line of this.lines) {
      const { command, query, transport } = line.dataset;
      const url = this.url(query);
      line.querySelector("code").textContent = `${command} ${quoted(transport === "websocket" ? url.replace(/^http/, "ws") : url)}`;
    }
  }

  copies(line) {
    const button = line.querySelector(".copy");
    const text = line.querySelector("code");
    button.hidden = false;
    button.setAttribute("aria-label", `Copy the ${line.querySelector("span").textContent} line`);
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
    if (running.size >= OPEN_AT_ONCE) [...running][0].stop("stopped, another one was started");
    running.add(this);
    this.log?.remove();
    this.log = element("ol", "log");
    this.log.tabIndex = 0;
    Object.entries({ role: "log", "aria-live": "off", "aria-label": `Events of ${this.article.dataset.path}` })
      .forEach(([name, value]) => this.log.setAttribute(name, value));
    this.form.after(this.log);
    this.count = 0;
    this.button.textContent = "Stop";
    this.say("connecting", "connecting");
    const source = (this.source = new EventSource(this.url()));
    source.onopen = () => this.say("live", "live");
    source.onmessage = (event) => this.take("record", event.data);
    for (const name of CONTROL) source.addEventListener(name, (event) => this.take(name, event.data));
    source.onerror = (event) => {
      if (this.source !== source) return;
      if (event.data !== undefined) return this.take("error", event.data);  // the gateway's own event
      if (source.readyState === EventSource.CLOSED) this.refused();
      else this.say("connecting", "reconnecting");
    };
  }

  stop(text, state = "stopped") {
    running.delete(this);
    this.source?.close();
    this.source = null;
    this.button.textContent = "Try it";
    this.say(state, text);
  }

  /* EventSource does not tell why: ask once more, as a program that hears of it. */
  async refused() {
    const url = this.url();
    this.stop("refused", "refused");
    try {
      const answer = await fetch(url, { headers: { Accept: "application/json" } });
      if (!answer.ok) this.say("refused", `refused: ${(await answer.json()).detail}`);
      else answer.body?.cancel();
    } catch { /* it stays at that */ }
  }

  take(name, data) {
    if (!this.source) return;
    if (name === "record") this.count++;
    this.news.push([name, data]);
    if (this.news.length > KEPT) this.news.shift();
    if (this.news.length === 1) requestAnimationFrame(() => this.draw());
  }

  draw() {
    const atEnd = this.log.scrollHeight - this.log.scrollTop - this.log.clientHeight < 40;
    for (const [name, data] of this.news.splice(0)) {
      const row = element("li", name === "record" ? "record" : "control");
      row.dataset.event = name;
      row.append(element("span", "event", name), element("code", "", data.length > SHOWN ? `${data.slice(0, SHOWN)} …` : data));
      this.log.append(row);
    }
    while (this.log.children.length > KEPT) this.log.firstChild.remove();
    if (atEnd) this.log.scrollTop = this.log.scrollHeight;
    this.counted();
  }

  /* Said aloud where that is wished for: not more than once in two seconds. */
  counted() {
    this.due ??= setTimeout(() => {
      this.due = undefined;
      if (this.source) this.say("live", `live, ${this.count} record${this.count === 1 ? "" : "s"}`);
    }, 2000);
  }

  say(state, text) {
    this.state.dataset.state = state;
    if (this.state.textContent !== text) this.state.textContent = text;
  }
}

for (const article of document.querySelectorAll(".stream")) new Card(article);

const search = document.getElementById("search");
search.addEventListener("input", () => {
  const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
  const all = [...document.querySelectorAll(".stream")];
  for (const each of all) {
    const text = `${each.dataset.path} ${each.querySelector(".facts").textContent}`.toLowerCase();
    each.hidden = !words.every((word) => text.includes(word));
  }
  const left = all.filter((each) => !each.hidden).length;
  document.getElementById("found").textContent = words.length ? `${left} of ${all.length}` : "";
});
