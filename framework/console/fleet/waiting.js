/** What waits in a fleet, and why: groups of runs, and runs that processes handed on. */

import { h } from "../core/dom.js";
import { duration, runName } from "../core/format.js";
import { t } from "../core/i18n.js";
import { icon } from "../core/icons.js";
import { link } from "../core/route.js";
import { visible } from "../widgets/text.js";

/** @typedef {import("../types.d.ts").WaitingRuns} WaitingRuns */
/** @typedef {import("../types.d.ts").HandedOnRun} HandedOnRun */

/** @type {Record<string, [string, string, (group: WaitingRuns) => string]>} icon, kind and sentence of each reason */
const REASONS = {
  capacity: ["clock", "none", () => t("Every process is at its capacity.")],
  no_worker: ["alert", "danger", () => t("No live process executes them.")],
  conversation: ["chat", "none", () => t("An earlier run of their conversation is open.")],
  limit: ["shield", "warn", ({ limit }) => {
    return t("The limit of {name} is reached.", { name: limit?.replace(":", " ") ?? "–" });
  }],
  handed_on: ["reply", "warn", () => t("Processes could not execute them and handed them on.")],
  released: ["refresh", "info", () => t("Their process has ended; another one continues them.")],
};

/** @param {WaitingRuns[]} groups */
export function waiting(groups) {
  const head = h("header", h("h2", t("Waiting")));
  if (!groups.length) return h("section.card", head, h("p.in.dim.row", icon("check"), t("No run waits.")));
  const names = [t("Runs"), t("Why they wait"), t("Oldest")];
  const titles = h("tr", h("th", { scope: "col" }, t("Queue or agent")),
    names.map((name, i) => h(`th${i === 1 ? ".w" : ".r"}`, { scope: "col" }, name)));
  return h("section.card", head, h("table.table.waits", h("thead", titles), h("tbody", groups.map(row))));
}

/** @param {WaitingRuns} group */
function row(group) {
  const { queue, agent, count, oldest_seconds: oldest, reason } = group;
  const [name, kind, text] = REASONS[reason] ?? ["clock", "none", () => reason];
  const who = [queue && h("span.tag", queue), agent && h("a.lk", { href: link("agents", agent) }, agent)];
  return h("tr",
    h("th.name", { scope: "row" }, h("span.row", who.some(Boolean) ? who : h("span.dim", t("agent not chosen yet")))),
    h("td.r", count.toLocaleString("en-US")),
    h("td.w", h(`span.row.k-${kind}`, h("span.ink", icon(name)), h("span", text(group)))),
    h("td.r", duration(Math.max(1, Math.round(oldest)) * 1000)));
}

/** @param {HandedOnRun[]} runs */
export function handedOn(runs) {
  if (!runs.length) return null;
  const rows = runs.map(({ run_id: id, reasons }) => h("li",
    h("a.lk.mono", { href: link("runs", id), title: id }, runName(id)),
    h("ul", Object.entries(reasons).map(([process, text]) =>
      h("li", text.startsWith(process) ? null : [h("code", visible(process)), " "], visible(text))))));
  return h("section.card", h("header", h("h2", t("Handed on"))), h("ul.in.handed", rows));
}
