/** The figures on top of the usage page, with their change and course, and the table of groups below. */

import { fill, h, svg } from "../core/dom.js";
import { t, tn } from "../core/i18n.js";
import { icon } from "../core/icons.js";
import { link } from "../core/route.js";
import { groupName, measured, MEASURES, TITLES, unpriced } from "./measures.js";

/** @typedef {import("./measures.js").Usage} Usage */
/** @typedef {import("./measures.js").Figures} Figures */
/** @typedef {import("./measures.js").Group} Group */
/** @typedef {import("./measures.js").Measure} Measure */

/** @param {Element} list a `dl` @param {Usage} usage */
export function showFigures(list, { total, previous, over_time }) {
  fill(list, MEASURES.filter(({ id }) => id !== "each").map((one) => {
    const title = one.id === "cost" ? unpriced(total) : null;
    const steps = over_time.map(one.of);
    const number = h("dd", measured(one, total), delta(one, total, previous));
    return h("div", { title }, h("dt", one.label()), number, course(steps, one.bad));
  }));
}

/**
 * Return the change in percent, of shares in percentage points; null if there was nothing before.
 * @param {number | null} value
 * @param {number | null} before
 * @param {boolean} share
 */
export function change(value, before, share) {
  if (value === null || before === null || (!share && !before)) return null;
  return share ? Math.round((value - before) * 1000) / 10 : Math.round((value / before - 1) * 100);
}

/** @param {Measure} measure @param {Figures} now @param {Figures} before */
function delta({ id, of, bad }, now, before) {
  const share = id === "failed";
  const points = change(of(now), of(before), share);
  if (points === null) return null;
  const kind = !bad || !points ? "none" : points > 0 ? bad : "ok";
  const text = (points > 0 ? "+" : points ? "−" : "±") + Math.min(999, Math.abs(points)) + (share ? "" : "\u2009%");
  return h(`span.delta.k-${kind}`, text, h("span.sr", t("against the period before")));
}

/** @param {(number | null)[]} values @param {string} [bad] */
function course(values, bad) {
  const top = Math.max(...values.map((value) => value ?? 0)) || 1;
  const points = values.map((value, i) => {
    return value === null ? "" : `${Math.round((i * 200) / values.length)},${Math.round(27 - (value / top) * 24)}`;
  });
  const line = svg("polyline.ln", { points: points.join(" "), "vector-effect": "non-scaling-stroke" });
  const props = { viewBox: "0 0 200 30", preserveAspectRatio: "none", "aria-hidden": "true" };
  return svg(`svg.course.k-${bad}`, props, line);
}

/**
 * Show the groups of a period in a table.
 * @param {Element} place
 * @param {Usage} usage
 * @param {string} sort id of a measure, with "-" before it: ascending
 * @param {(sort: string) => void} onSort
 */
export function showGroups(place, { by, groups, more_groups, since }, sort, onSort) {
  const up = sort.startsWith("-") ? 1 : -1;
  const sorted = MEASURES.find(({ id }) => id === sort.replace("-", "")) ?? MEASURES[0];
  const rank = (/** @type {Group} */ group) => sorted.of(group) ?? -1;
  const most = Math.max(...groups.map(rank)) || 1;
  const heads = MEASURES.map((one) => head(one, one === sorted ? up : 0, onSort));
  const rows = [...groups].sort((a, b) => up * (rank(a) - rank(b)) || b.runs - a.runs).map((group) => {
    const name = groupName(by, group);
    const filter = { agent: { agent: group.key }, generation: { digest: group.key } }[/** @type {string} */ (by)];
    const named = filter && group.key ? h("a.lk", { href: link("runs", { ...filter, since }) }, name) : name;
    const cells = MEASURES.map((one) => {
      const meter = one === sorted && h("i.meter", { css: { "--p": `${(100 * Math.max(0, rank(group))) / most}%` } });
      return h("td.r", { title: one.id === "cost" ? unpriced(group) : null }, meter, measured(one, group));
    });
    return h("tr", h("th.name.cut", { scope: "row", title: name }, named), cells);
  });
  const focused = document.activeElement?.getAttribute("data-sort");
  const titles = h("thead", h("tr", h("th", { scope: "col" }, TITLES[by]()), heads));
  const more = more_groups ? h("p.pager", tn(more_groups, "1 more is not shown", "{n} more are not shown")) : null;
  fill(place, h("table.table.groups", titles, h("tbody", rows)), more);
  /** @type {HTMLElement | null} */ (place.querySelector(`[data-sort="${focused}"]`))?.focus();
}

/** @param {Measure} measure @param {number} up -1: sorted descending @param {(sort: string) => void} onSort */
function head({ id, label }, up, onSort) {
  const mark = up ? icon("down") : null;
  if (up > 0) mark?.classList.add("up");
  const props = { "data-sort": id, onclick: () => onSort(up < 0 ? `-${id}` : id) };
  const order = up ? (up < 0 ? "descending" : "ascending") : null;
  return h("th.r", { scope: "col", "aria-sort": order }, h("button", props, mark, label()));
}
