/** A plan as a checklist that ticks, with what its revisions added and took away. */

import { fill, h } from "../core/dom.js";
import { duration } from "../core/format.js";
import { t } from "../core/i18n.js";
import { icon } from "../core/icons.js";
import { terms, visible } from "./text.js";
import { mark } from "./tool-card.js";

/** @typedef {import("../types.d.ts").RunItem} RunItem */
/** @typedef {import("../types.d.ts").ShownStep} ShownStep */

/** @type {Record<string, [string, string]>} */
const MARKS = {
  open: ["todo", "none"],
  running: ["spin", "accent"],
  done: ["check", "ok"],
  failed: ["x", "danger"],
  skipped: ["ban", "none"],
  waiting: ["pause", "human"],
};

/**
 * Return an element that shows a plan; `showPlan` shows later states of it.
 */
export function planCard() {
  return h("section.card.plan", { "aria-label": t("Plan") });
}

/**
 * Show a plan.
 * @param {HTMLElement} card
 * @param {RunItem} plan
 * @param {RunItem[]} items what the run shows, with the calls of the steps
 */
export function showPlan(card, plan, items) {
  const steps = plan.steps ?? [];
  const calls = items.filter(({ kind }) => kind === "call" || kind === "sub");
  const left = steps.filter((step) => !step.removed);
  const state = JSON.stringify([plan.revision, steps, calls.map(({ status, ms }) => [status, ms])]);
  if (card.dataset.state === state) return;
  card.dataset.state = state;
  const done = left.filter((step) => step.status === "done").length;
  const count = h("span.label.num", t("{n} of {all}", { n: done, all: left.length }));
  const number = plan.revision ?? 1;
  const revision = number > 1 ? h("span.badge.k-plan", t("revision {n}", { n: number })) : null;
  const head = h("header", icon("plan"), h("h2.cut", visible(plan.goal ?? "")), count, h("span.grow"), revision);
  fill(card, head, h("ol", steps.map((step) => stepRow(step, callOf(step, calls)))));
}

/** @param {ShownStep} step @param {RunItem[]} calls the last attempt at a step */
function callOf({ id }, calls) {
  const own = new RegExp(`^plan-\\d+-${id}(~\\d+)?$`);
  return calls.findLast((call) => call.id === id || own.test(call.id));
}

/** @param {ShownStep} step @param {RunItem | undefined} call */
function stepRow(step, call) {
  const waits = call?.status === "waiting" && step.status === "running";
  const [name, kind] = MARKS[waits ? "waiting" : step.status] ?? MARKS.open;
  const end = waits ? t("waits for you") : call?.ms === undefined ? "" : duration(call.ms);
  const row = h(`li.k-${kind}`, mark(name, kind), h("span.id", step.id), h("span.t", visible(step.description)));
  if (step.removed) row.classList.add("old");
  if (waits) row.classList.add("now");
  row.append(h("span.sr", ` ${waits ? "" : step.status} `), h("span.end", end));
  const after = step.depends_on?.length ? t("after {steps}", { steps: step.depends_on.join(", ") }) : "";
  const notes = [
    step.tool || after ? [h("code", step.tool ?? ""), step.tool && after ? ", " : "", after] : null,
    ...terms(step),
    step.added && step.added > 1 ? h("span.ink.k-plan", t("added in revision {n}", { n: step.added })) : null,
    step.removed ? t("taken out in revision {n}", { n: step.removed }) : null,
    ["failed", "skipped"].includes(step.status) && step.result ? visible(step.result.slice(0, 300)) : null,
  ];
  for (const line of notes) if (line) row.append(h("span.sub", line));
  return row;
}
