/** Changes of the configuration: what a key was, what it is, and whether an agent may do more. */

import { h } from "../core/dom.js";
import { t } from "../core/i18n.js";
import { icon } from "../core/icons.js";

/** @typedef {import("../types.d.ts").Change} Change */

const EFFECTS = {
  widens: { kind: "k-warn", name: "widen", word: () => t("widens") },
  tightens: { kind: "k-ok", name: "tighten", word: () => t("tightens") },
  neutral: { kind: "k-none", name: "", word: () => t("neutral") },
};

/** @param {Change["effect"]} effect @param {string} [text] */
export function effectTag(effect, text = EFFECTS[effect].word()) {
  const { kind, name } = EFFECTS[effect];
  return h(`span.tag.${kind}`, name && icon(name), text);
}

/**
 * Return a tag for each effect that the changes have, such as "2 widens".
 * @param {readonly Change[]} changes
 */
export function effectTags(changes) {
  return /** @type {const} */ (["widens", "tightens", "neutral"]).flatMap((effect) => {
    const n = changes.filter((change) => change.effect === effect).length;
    return n ? [effectTag(effect, `${n} ${EFFECTS[effect].word()}`)] : [];
  });
}

/** @param {Change} change as one line, such as `support: limits.steps: 10 → 12` */
export function changeText({ agent, key, file_key, before, after }) {
  if (!key) return `${agent}: ${after === undefined || after === null ? t("removed") : t("added")}`;
  return `${agent}: ${file_key || key}: ${valueText(before)} → ${valueText(after)}`;
}

/**
 * Return a list of changes: first those that widen, then those that tighten.
 * @param {readonly Change[]} changes
 */
export function changeList(changes) {
  const order = Object.keys(EFFECTS);
  const sorted = [...changes].sort((a, b) => order.indexOf(a.effect) - order.indexOf(b.effect));
  const rows = sorted.map((change) => h("li.change", effectTag(change.effect), h("code", changeText(change))));
  return h("ul.changes", rows);
}

/** @param {any} value A rule that is only a tool, or an approval from a risk, is its name, as in a file. */
function valueText(value) {
  if (value === undefined || value === null) return t("none");
  const { tool, from, ...rest } = value;
  if ((tool || from) && !Object.values(rest).some((one) => one && Object.keys(one).length)) return tool ?? from;
  return typeof value === "string" ? value : JSON.stringify(value);
}
