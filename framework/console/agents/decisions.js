/** What past decisions say about the rules of an agent, and the edit of its file that they suggest. */

import { get } from "../core/api.js";
import { failureNote } from "../core/component.js";
import { fill, h } from "../core/dom.js";
import { t } from "../core/i18n.js";
import { icon } from "../core/icons.js";
import { copyButton } from "../widgets/copy.js";
import { unifiedView } from "../widgets/diff.js";
import { place } from "../widgets/place.js";
import { visible } from "../widgets/text.js";

/** @typedef {import("../types.d.ts").Suggestion} Suggestion */

const TITLES = {
  narrow: t("Ask about fewer calls"), deny: t("Deny what is always rejected"),
  kept: t("No rule can say it"), unused: t("No call matched this rule"),
};

/** @param {string} name */
export function decisions(name) {
  const node = h("div.stack");
  get(`/agents/${encodeURIComponent(name)}/suggestions`).then(({ suggestions, diff }) => fill(node,
    h("p.sec", t("What people approved and rejected in the last 30 days, compared with the rules of the file.")),
    suggestions.length ? suggestions.map(card) : h("p.dim", t("No rule asked often enough.")),
    diff ? h("section.card", h("header", h("h2.grow", t("The edit")), copyButton(diff)), h("div.in.stack",
      h("p.small.dim", t("It allows no call that was rejected. This command writes it:"), " ",
        h("code", "agentsd policy suggest --apply")),
      unifiedView(diff.trimEnd()))) : null),
  (error) => fill(node, failureNote(error)));
  return node;
}

/** @param {Suggestion} suggestion */
const card = ({ kind, rule, place: at, summary, becomes }) => h("section.card",
  h("header", h("h2", TITLES[kind]), h("code.grow", visible(rule)), place(at)),
  kind === "unused" ? null : h("div.in.stack", h("p", visible(summary)),
    becomes.map((text) => h("p.row", icon("right", { size: 14 }), h("code", visible(text))))));
