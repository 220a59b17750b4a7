/** Two versions of a file side by side: the one on the disk, and the one that is being edited. */

import { h } from "../core/dom.js";
import { t } from "../core/i18n.js";
import { diffLines } from "../widgets/diff.js";
import { visible } from "../widgets/text.js";

/** @typedef {import("../widgets/diff.js").Line} Line */

/**
 * Return both versions, with what differs marked.
 * @param {string} disk
 * @param {string} own
 * @param {{keep: () => void, take: () => void, close: () => void}} actions
 */
export function conflictView(disk, own, { keep, take, close }) {
  const lines = diffLines(disk, own);
  const button = (/** @type {string} */ text, /** @type {() => void} */ onclick, kind = "") =>
    h(`button.btn.sm${kind}`, { onclick }, text);
  return h("div.conflict", { role: "region", "aria-label": t("Both versions") },
    h("div.row.wrap", h("p.grow", t("The file has changed since you began. Nothing is overwritten until you choose.")),
      button(t("Back to my text"), close, ".ghost"), button(t("Take the one on disk"), take),
      button(t("Keep mine"), keep, ".primary")),
    h("div.both", side(t("On disk"), lines, "del"), side(t("Mine"), lines, "add")));
}

/** @param {string} title @param {readonly Line[]} lines @param {"add" | "del"} own */
function side(title, lines, own) {
  const rows = lines.map(({ kind, parts }) => {
    if (kind !== "same" && kind !== own) return h("span.l.gap");
    const text = parts.map((part) => (part.changed ? h("b", visible(part.text)) : visible(part.text)));
    return h("span.l", { class: kind === "same" ? "" : kind }, text);
  });
  return h("section", h("h2.label", title), h("code.code", { tabindex: 0, role: "group", "aria-label": title }, rows));
}
