/** One question before an action that somebody else notices. */

import { byId, setText } from "./format.js";

/**
 * Asks, and resolves with null for no.
 *
 * @param hasTime whether to ask for how long; resolves with { seconds } then, null for no end.
 */
export function ask(text, answer, hasTime = false) {
  const dialog = byId("question");
  setText("question-text", text);
  setText("question-yes", answer);
  byId("question-until").hidden = !hasTime;
  dialog.returnValue = "no";
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener(
      "close",
      () => {
        const seconds = Number(byId("until").value) || null;
        resolve(dialog.returnValue === "yes" ? { seconds } : null);
      },
      { once: true },
    );
  });
}
