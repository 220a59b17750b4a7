/** The results of an agent's test cases: the success rate of each with its interval, and its history. */

import { apiPath, get } from "../core/api.js";
import { failureNote } from "../core/component.js";
import { fill, h } from "../core/dom.js";
import { cost, digest, fullTime, percent, runName, time } from "../core/format.js";
import { t } from "../core/i18n.js";
import { icon } from "../core/icons.js";
import { link } from "../core/route.js";
import { visible } from "../widgets/text.js";

/** @typedef {import("../types.d.ts").CaseHistory} CaseHistory */

const SOURCES = { test: "agentsd test", gate: "reload.gate", runs: "agentsd test --runs" };

/** @param {string} name */
export function cases(name) {
  const node = h("div.stack");
  get(apiPath`/agents/${name}/cases`).then(({ cases: found }) => fill(node,
    h("p.sec", t("What agentsd test and the gate of edits have found. The rate is that of the newest version.")),
    found.length ? found.map(card) : h("p.dim", t("No result is stored. Run agentsd test."))),
  (error) => fill(node, failureNote(error)));
  return node;
}

/** @param {CaseHistory} history @param {number} i */
function card({ name, attempts, passed, low, high, results }, i) {
  const [newest] = results;
  const tone = passed === attempts ? "k-ok" : newest?.unknown ? "k-warn" : "k-danger";
  return h("section.card",
    h("header", h("h2.grow", name ? visible(name) : t("Stored runs")),
      h("span.small.dim", { title: t("95 % interval") }, `${percent(low)} – ${percent(high)}`),
      h("span.tag", { class: tone }, `${passed}/${attempts}`)),
    h("div.in.stack", newest?.failure && h("p.small", visible(newest.failure)),
      h("details", { open: i === 0 },
        h("summary.row", icon("right", { size: 14 }), t("Last {n} results", { n: results.length })),
        h("div.stack", results.map(row)))));
}

/** @param {CaseHistory["results"][number]} result */
function row(result) {
  const parts = [
    h("time", { title: fullTime(result.at) }, time(result.at)),
    h("b", { class: result.passed === result.attempts ? "k-ok" : "k-danger" }, `${result.passed}/${result.attempts}`),
    h("code", { title: result.digest }, digest(result.digest)),
    SOURCES[result.source],
    result.model,
    result.cost_usd ? cost(result.cost_usd) : null,
    result.run_id && h("a.lk.mono", { href: link("runs", result.run_id) }, runName(result.run_id)),
  ];
  return h("p.small.sec", { title: result.failure },
    parts.filter(Boolean).flatMap((part, i) => (i ? [" · ", part] : [part])));
}
