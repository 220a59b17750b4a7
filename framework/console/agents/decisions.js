/** What past decisions say about the rules of an agent, and the edit of its file that they suggest. */

import { apiPath, get } from "../core/api.js";
import { failureNote } from "../core/component.js";
import { fill, h } from "../core/dom.js";
import { t, tn } from "../core/i18n.js";
import { icon } from "../core/icons.js";
import { may } from "../core/live.js";
import { copyButton } from "../widgets/copy.js";
import { unifiedView } from "../widgets/diff.js";
import { place } from "../widgets/place.js";
import { visible } from "../widgets/text.js";
import { grants } from "./grants.js";

/** @typedef {import("../types.d.ts").Suggestion} Suggestion */

const TITLES = {
  narrow: t("Ask about fewer calls"), deny: t("Deny what is always rejected"),
  kept: t("No rule can say it"), unused: t("No call matched this rule"),
};

/** @type {Record<string, string>} */
const OBSTACLES = {
  pattern: t("The rule is about several tools: write one for this tool above it."),
  tool: t("The tool itself requires confirmation."),
  max_risk: t("Its risk is above max_risk, so only calls that were asked about are permitted."),
  risk: t("approve_from would ask, because of its risk."),
  later: t("A later rule asks about every call of the tool."),
  file: t("The edit cannot be written for you: edit the file by hand."),
  values: t("No range, prefix or value separates the approved calls from the others."),
};

/** @param {string} name */
export function decisions(name) {
  const node = h("div.stack");
  get(apiPath`/agents/${name}/suggestions`).then(({ suggestions, diff }) => fill(node,
    h("p.sec", t("What people approved and rejected in the last 30 days, compared with the rules of the file.")),
    suggestions.length ? suggestions.map(card) : h("p.dim", t("No rule asked often enough.")),
    diff ? h("section.card", h("header", h("h2.grow", t("The edit")), copyButton(diff)), h("div.in.stack",
      h("p.small.dim", t("It allows no call that was rejected. This command writes it:"), " ",
        h("code", "agentsd policy suggest --apply")),
      unifiedView(diff.trimEnd()))) : null),
  (error) => fill(node, failureNote(error)));
  return h("div.stack", may("decide") ? grants(name) : null, node);
}

/** @param {Suggestion} suggestion */
const card = (suggestion) => h("section.card",
  h("header", h("h2", TITLES[suggestion.kind]), h("code.grow", visible(suggestion.rule)), place(suggestion.place)),
  suggestion.kind === "unused" ? null : h("div.in.stack", summary(suggestion),
    suggestion.becomes.map((text) => h("p.row", icon("right", { size: 14 }), h("code", visible(text))))));

/** @param {Suggestion} suggestion */
function summary({ kind, obstacle, asked, approved, rejected, expired, people, covers }) {
  const counts = [t("asked {n}", { n: asked }), approved && t("approved {n}", { n: approved }),
    rejected && t("rejected or changed {n}", { n: rejected }), expired && t("expired {n}", { n: expired }),
    tn(people, "by 1 person", "by {n} people")];
  const effect = kind === "narrow" ? t("The edit would have allowed {n}, and nothing that was rejected.", { n: covers })
    : kind === "deny" ? t("The edit would have denied all of them.") : OBSTACLES[obstacle ?? ""];
  return [h("p", counts.filter(Boolean).join(" · ")), h("p.sec", effect)];
}
