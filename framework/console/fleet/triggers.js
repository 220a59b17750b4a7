/** The triggers of the project: when each starts a run, next and last, and why it did not. */

import { apiPath, post } from "../core/api.js";
import { h } from "../core/dom.js";
import { ago, fullTime, runName, time } from "../core/format.js";
import { t } from "../core/i18n.js";
import { may } from "../core/live.js";
import { link } from "../core/route.js";
import { visible } from "../widgets/text.js";

/** @typedef {import("../types.d.ts").TriggerReport} Trigger */

/**
 * @param {Trigger[]} items
 * @param {(asked: Promise<unknown>) => void} act waits for a change, then shows the triggers again
 */
export function triggers(items, act) {
  if (!items.length) return null;
  const names = [t("Starts"), t("Next"), t("Last"), ...(may("admin") ? [""] : [])];
  const titles = h("tr", h("th", { scope: "col" }, t("Trigger")),
    names.map((name) => (name ? h("th", { scope: "col" }, name) : h("td"))));
  const rows = items.map((one) => row(one, act));
  return h("section.card", h("header", h("h2", t("Triggers"))),
    h("table.table.waits.triggers", h("thead", titles), h("tbody", rows)));
}

/** @param {Trigger} one @param {(asked: Promise<unknown>) => void} act */
function row(one, act) {
  const starts = one.cron ?? `POST /hooks/${one.name}`;
  return h("tr",
    h("th.name", { scope: "row" }, h("span.row",
      h("b", { title: one.description || one.path }, one.name),
      h("a.lk", { href: link("agents", one.agent) }, one.agent),
      one.stale && h("span.tag.k-danger", t("its file is invalid")))),
    h("td", h("code", { title: one.when }, starts), one.cron && h("small.dim", " ", one.timezone)),
    h("td", next(one)),
    h("td.w", last(one)),
    may("admin") && h("td.r", buttons(one, act)));
}

/** @param {Trigger} one */
function next(one) {
  if (one.paused_at) {
    const by = one.paused_by ? t("paused by {who}", { who: one.paused_by }) : t("paused");
    return h("span.status.k-warn", { title: fullTime(one.paused_at) }, by);
  }
  return one.next_at ? h("time", { title: fullTime(one.next_at) }, time(one.next_at)) : h("span.dim", "–");
}

/** @param {Trigger} one */
function last(one) {
  if (!one.last_at) return h("span.dim", t("never"));
  const when = h("time.dim", { title: fullTime(one.last_at) }, ago(one.last_at));
  if (one.note) return h("span.row.wrap", when, h("span.k-warn", visible(one.note)));
  const run = one.last_run ?? "";
  return h("span.row.wrap", when, h("a.lk.mono", { href: link("runs", run), title: run }, runName(run)));
}

/** @param {Trigger} one @param {(asked: Promise<unknown>) => void} act */
function buttons(one, act) {
  const button = (/** @type {string} */ what, /** @type {string} */ label) =>
    h("button.btn.sm.ghost", {
      "aria-label": `${label}: ${one.name}`,
      onclick: () => act(post(apiPath`/triggers/${one.name}/${what}`)),
    }, label);
  return h("span.row",
    one.kind === "cron" && button("run", t("Run now")),
    one.paused_at ? button("resume", t("Resume")) : button("pause", t("Pause")));
}
