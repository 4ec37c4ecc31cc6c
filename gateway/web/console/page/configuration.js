/** The configuration in effect, and what the file on disk would change. */

import { describeMissing, requestJson } from "./api.js";
import { ask } from "./dialog.js";
import { byId, element, setText, showMessage } from "./format.js";

export class ConfigurationView {
  constructor() {
    byId("config-refresh").addEventListener("click", () => this.show());
    byId("config-reload").addEventListener("click", () => this.#reload());
  }

  async show() {
    try {
      this.#showReport(await requestJson("console/config"));
    } catch (error) {
      say(error.message, true);
    }
  }

  #showReport({ loaded, diff, problems, state, kept }) {
    setText("config-loaded", loaded);
    byId("config-difference").hidden = !diff.length;
    byId("config-diff").replaceChildren(
      ...diff.map((line) =>
        element("span", { class: { "+": "added", "-": "removed" }[line[0]] }, `${line}\n`)),
    );
    byId("config-reload").disabled = state === "no-file";
    const except = kept.length ? `, except for what needs a restart: ${kept.join(", ")}.` : ".";
    const words = {
      same: "The file says the same.",
      differs: `The file differs; a reload applies it${except}`,
      secrets: `Only secrets differ in the file; a reload applies them${except}`,
      restart: `The file differs in what a reload leaves as it is; it needs a restart: ${kept.join(", ")}.`,
      "no-file": "This gateway was not started from a file.",
      refused: `A reload refuses the file and changes nothing: ${problems.join("; ")}`,
    };
    say(words[state], state === "refused");
  }

  async #reload() {
    const answer = await ask("Reload the configuration in all workers? Streams whose route shows them the same go on.", "Reload");
    if (!answer) return;
    try {
      const { routes, streams, kept, missing } = await requestJson("reload", { method: "POST" });
      await this.show();
      const parts = Object.entries(streams).map(([what, number]) => `${number} ${what}`);
      say(`Reloaded: ${routes.changed} routes changed, ${routes.added} added, ${routes.removed} removed; ` +
        `streams: ${parts.join(", ") || "none"}` + (kept.length ? `; after a restart only: ${kept.join(", ")}` : "") +
        describeMissing(missing), missing.length > 0);
    } catch (error) {
      say(error.message, true);
    }
  }
}

const say = (text, isBad) => showMessage("config-state", text, isBad);
