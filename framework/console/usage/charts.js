/** The charts of the usage page: runs by status, latency, cost, tokens and errors. */

import { fill, h, keyed } from "../core/dom.js";
import { cost, duration, tokens } from "../core/format.js";
import { t } from "../core/i18n.js";
import { link } from "../core/route.js";
import { Chart } from "../widgets/chart.js";
import { durationUnit } from "../widgets/scale.js";
import { statusWord } from "../widgets/status.js";
import { count, groupName, unpriced } from "./measures.js";

/** @typedef {import("./measures.js").Usage} Usage */
/** @typedef {import("../widgets/chart.js").Series} Series */
/** @typedef {Partial<import("../widgets/chart.js").ChartModel> & {series: Series[]}} Shown */

const GROUP_KINDS = ["model", "plan", "tool", "warn", "accent"];
const ERROR_KINDS = ["danger", "warn", "model", "plan"];
/** Colours of statuses, in the order of the bars from below. @type {Record<string, string>} */
const STATUS_KINDS = {
  completed: "none", cancelled: "info", queued: "plan", running: "accent", paused: "human", failed: "danger",
  stopped: "warn",
};

/** @param {Element} place contains only what this function has put there @param {Usage} usage */
export function showCharts(place, usage) {
  const { over_time: steps, total, generations, until, by } = usage;
  const step = { "1h": t("every hour"), "3h": t("every 3 hours"), "1d": t("every day") }[usage.step];
  const names = usage.groups.map((group) => groupName(by, group));
  /** @param {string} label @param {string} kind @param {import("./measures.js").Of} of */
  const over = (label, kind, of) => series(label, kind, steps.map(of));
  const times = [
    over("p95", "model", ({ latency }) => latency.p95_ms),
    over("p50", "tool", ({ latency }) => latency.p50_ms),
  ];
  const spent = [
    over(t("cached input"), "none", ({ tokens: { cached } }) => cached),
    over(t("input"), "plan", ({ tokens: { input, cached } }) => input - cached),
    over(t("output"), "model", ({ tokens: { output } }) => output),
  ];
  const ran = Object.entries(STATUS_KINDS)
    .filter(([name]) => total.statuses[name])
    .map(([name, kind]) => over(statusWord(name), kind, ({ statuses }) => statuses[name] ?? 0));
  const wholes = { format: count, whole: true };
  const slow = durationUnit(Math.max(0, ...times[0].values.map((value) => value ?? 0)));
  /** @type {[string, string, Shown][]} */
  const cards = [
    [t("Runs"), step, { series: ran, ...wholes }],
    [t("Latency"), t("active time"), { series: times, format: duration, unit: slow, lines: true }],
    [t("Cost"), unpriced(total) || t("US dollars"), { series: costSeries(usage, names), format: cost, axis: dollars }],
    [t("Tokens"), step, { series: spent, format: tokens, axis: short, whole: true }],
    [t("Errors"), t("failed and stopped runs"), { series: errorSeries(usage), ...wholes }],
  ];
  const marks = generations.map(({ at, generation }) => ({ at: Date.parse(at), label: `g${generation}` }));
  const frame = { starts: steps.map(({ at }) => Date.parse(at)), end: Date.parse(until), marks, format: count };
  keyed(place, cards, ([title]) => title, () => h("section.card"), (node, [title, note, shown]) => {
    const chart = node.querySelector("line-chart") ?? new Chart();
    const legend = shown.lines ? [] : shown.series.map(({ label, kind }) => h(`span.k-${kind}`, h("i"), label));
    if (title === t("Errors") && legend.length) legend.push(h("a.lk", { href: errorsOf(usage) }, t("Show the runs")));
    const head = h("header", h("h2", title), h("span.small.dim.cut.grow", note), h("div.legend", legend));
    fill(node, head, shown.series.length ? chart : h("p.none.dim", t("None in this period.")));
    if (chart.isConnected) chart.show({ label: title, ...frame, ...shown });
  });
}

/** @param {string} label @param {string} kind @param {(number | null)[]} values */
const series = (label, kind, values) => ({ label, kind, values });

/**
 * Return the cost of the groups with most tokens, and that of all others together.
 * @param {Usage} usage
 * @param {readonly string[]} names of the groups
 */
export function costSeries({ over_time, groups }, names) {
  const own = groups.flatMap(({ cost_usd, over_time: steps }, i) =>
    steps && cost_usd ? [series(names[i], "", steps.cost_usd)] : []);
  own.forEach((one, i) => (one.kind = GROUP_KINDS[i]));
  return withOthers(own, over_time.map(({ cost_usd }) => cost_usd ?? 0));
}

/** @param {Usage} usage the four most frequent reasons, and all others together */
export function errorSeries({ over_time, total: { errors: all } }) {
  const reasons = Object.keys(all).sort((a, b) => all[b] - all[a]).slice(0, ERROR_KINDS.length);
  const own = reasons.map((reason, i) =>
    series(reason, ERROR_KINDS[i], over_time.map(({ errors }) => errors[reason] ?? 0)));
  return withOthers(own, over_time.map(({ errors }) => Object.values(errors).reduce((sum, n) => sum + n, 0)));
}

/** @param {Series[]} own @param {number[]} totals @returns {Series[]} */
function withOthers(own, totals) {
  const rest = totals.map((total, i) => own.reduce((left, { values }) => left - (values[i] ?? 0), total));
  if (!rest.some((left) => left > 1e-9)) return own;
  return [...own, series(t("others"), "none", rest.map((left) => Math.max(0, left)))];
}

/** @param {Usage} usage */
const errorsOf = ({ since, total }) => link("runs", { status: total.statuses.failed ? "failed" : "stopped", since });

/** @param {number} n on an axis: 1200 k, 3.5 M */
const short = (n) => (n < 1e3 ? `${n}` : n < 1e6 ? `${n / 1e3} k` : `${n / 1e6} M`);

/** @param {number} usd on an axis */
const dollars = (usd) => (usd < 0.1 ? cost(usd) : `$${usd.toFixed(2)}`);
