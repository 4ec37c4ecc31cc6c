/**
 * A stream as a client sees it. The page stops reading once the credit is used up, so that the
 * gateway waits as it does for any slow client.
 */

import { readEvents, request } from "./api.js";
import { byId, clock, element, setText } from "./format.js";

const MAX_EVENTS = 200;
const MAX_DATA_CHARS = 4000;

export class TrialView {
  #controller = null;
  #credit = 0;
  #wake = null;
  #count = 0;

  constructor() {
    byId("try-form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.#open();
    });
    byId("try-form").addEventListener("input", () => this.#showSnippets());
    byId("try-base").addEventListener("input", () => this.#showSnippets());
    byId("try-stop").addEventListener("click", () => this.#close());
    byId("try-more").addEventListener("click", () => this.#addCredit());
    for (const button of document.querySelectorAll("[data-copy]")) {
      button.addEventListener("click", () => copy(button));
    }
  }

  start(about) {
    const { host, port, tls } = about.listen;
    const isAny = ["0.0.0.0", "::", ""].includes(host);
    const name = isAny ? location.hostname : host.includes(":") ? `[${host}]` : host;
    if (!byId("try-base").value) byId("try-base").value = `${tls ? "https" : "http"}://${name}:${port}`;
    byId("try-routes").replaceChildren(...about.routes.map((path) => element("option", { value: path })));
    if (!byId("try-path").value) byId("try-path").value = about.routes[0] ?? "";
    this.#showSnippets();
  }

  #buildUrl() {
    const query = new URLSearchParams();
    for (const name of ["from", "filter"]) {
      const value = byId(`try-${name}`).value.trim();
      if (value) query.append(name, value);
    }
    const text = query.toString();
    return byId("try-path").value.trim() + (text && `?${text}`);
  }

  async #open() {
    this.#close();
    const controller = (this.#controller = new AbortController());
    byId("try-events").replaceChildren();
    this.#count = 0;
    this.#credit = Number(byId("try-credit").value);
    byId("try-stop").disabled = false;
    show("connecting", "opening");
    const token = byId("try-token").value.trim();
    try {
      const response = await request(`console/try?url=${encodeURIComponent(this.#buildUrl())}`, {
        headers: { Accept: "text/event-stream", ...(token && { "Gateway-Stream-Authorization": `Bearer ${token}` }) },
        signal: controller.signal,
      });
      show("live", "open");
      await readEvents(response, (name, data, id) => this.#onEvent(controller, name, data, id));
      if (this.#controller === controller) show("connecting", "the gateway ended the stream");
    } catch (error) {
      if (this.#controller === controller) show("refused", error.message);
    }
    if (this.#controller === controller) this.#close(false);
  }

  async #onEvent(controller, name, data, id) {
    if (this.#controller !== controller) return;
    this.#count += 1;
    const list = byId("try-events");
    const shown = data.length > MAX_DATA_CHARS ? `${data.slice(0, MAX_DATA_CHARS)}…` : data;
    list.prepend(element("li", {},
      element("small", {}, `${clock(Date.now() / 1000)} ${name} ${id && `id ${id.slice(0, 24)}`}`),
      element("code", {}, shown)));
    while (list.children.length > MAX_EVENTS) list.lastChild.remove();
    if (name === "message") this.#credit -= 1;
    show("live", `open, ${this.#count} events, credit for ${this.#credit} records`);
    if (this.#credit > 0) return;
    byId("try-more").disabled = false;
    show("connecting", `${this.#count} events; the credit is used up`);
    await new Promise((resolve) => (this.#wake = resolve));
  }

  #addCredit() {
    this.#credit = Number(byId("try-credit").value) || 1;
    byId("try-more").disabled = true;
    show("live", `open, ${this.#count} events, credit for ${this.#credit} records`);
    this.#wake?.();
  }

  #close(isAsked = true) {
    this.#controller?.abort();
    this.#controller = null;
    this.#wake?.();
    byId("try-stop").disabled = byId("try-more").disabled = true;
    if (isAsked) show("connecting", "not open");
  }

  #showSnippets() {
    const base = byId("try-base").value.replace(/\/$/, ""), url = this.#buildUrl();
    const hasToken = Boolean(byId("try-token").value.trim());
    const header = hasToken ? ` -H "Authorization: Bearer $TOKEN"` : "";
    setText("try-curl", `curl -N${header} ${quote(base + url)}`);
    const options = [`credit: ${Number(byId("try-credit").value) || 1}`];
    if (hasToken) options.push("token: () => fetchToken()");
    setText("try-js", [
      `import { connect } from ${JSON.stringify(`${base}/gateway.js`)};`,
      "",
      `for await (const item of connect(${JSON.stringify(base + url)}, { ${options.join(", ")} })) {`,
      '  if (item.type === "record") console.log(item.record);',
      "}",
    ].join("\n"));
  }
}

/** Quotes for a POSIX shell. */
function quote(text) {
  return `'${text.replaceAll("'", `'\\''`)}'`;
}

function show(state, text) {
  byId("try-state").dataset.state = state;
  setText("try-state", text);
}

async function copy(button) {
  const text = byId(button.dataset.copy).textContent;
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    // No clipboard without https, except on this machine: it is selected instead.
    getSelection().selectAllChildren(byId(button.dataset.copy));
    return;
  }
  button.textContent = "Copied";
  setTimeout(() => (button.textContent = "Copy"), 1500);
}
