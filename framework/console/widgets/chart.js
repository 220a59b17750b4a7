/** Charts over time as SVG: stacked bars from zero, or lines, with a read-out and a table of the same numbers. */

import { Component, define } from "../core/component.js";
import { fill, h, svg } from "../core/dom.js";
import { language, t } from "../core/i18n.js";
import { place, ticks, timeLabels } from "./scale.js";

/** @typedef {{label: string, kind: string, values: (number | null)[]}} Series kind: a colour, such as `plan` */
/** @typedef {{
 *   label: string, starts: number[], end: number, series: Series[], lines?: boolean, format: (value: number) => string,
 *   axis?: (value: number) => string, unit?: number, whole?: boolean, marks?: {at: number, label: string}[],
 * }} ChartModel starts: of the steps, in milliseconds; marks: dashed lines at times */
/** @typedef {(value: number) => number} Scale */

const TOP = 24;
const HEIGHT = 204;
const FLOOR = HEIGHT - 24;
const DOT = "m-1.2 0a1.2 1.2 0 1 0 2.4 0a1.2 1.2 0 1 0-2.4 0";
/** @param {Intl.DateTimeFormatOptions} options */
const dates = (options) => new Intl.DateTimeFormat(language === "zh" ? "zh-CN" : "en-GB", options);
const DAY = dates({ day: "numeric", month: "short" });
const HOUR = dates({ hour: "2-digit", minute: "2-digit" });
const WEEKDAY = dates({ weekday: "short", day: "numeric", month: "short" });

export class Chart extends Component {
  /** @type {ChartModel | null} */
  #model = null;
  #shown = -1;
  #left = 0;
  #room = 1;
  #drawing = svg("svg", { "aria-hidden": "true", height: HEIGHT });
  #guide = svg("path.guide");
  #readout = h("div.readout", { hidden: true });
  #said = h("p.sr", { role: "status" });
  #table = h("div.sr");

  start() {
    this.classList.add("chart");
    this.setAttribute("role", "group");
    this.tabIndex = 0;
    fill(this, this.#drawing, this.#readout, this.#said, this.#table);
    const observer = new ResizeObserver(this.frame(() => this.#draw()));
    observer.observe(this);
    this.on(this.stopped, "abort", () => observer.disconnect());
    this.on(this, "pointermove", ({ clientX }) =>
      this.#read(Math.floor((clientX - this.getBoundingClientRect().left - this.#left) / this.#room)));
    for (const type of ["pointerleave", "blur"]) this.on(this, type, () => this.#read(-1));
    this.on(this, "keydown", (event) => this.#press(event));
  }

  /** @param {ChartModel} model */
  show(model) {
    this.#model = model;
    this.setAttribute("aria-label", model.label);
    fill(this.#table, numbers(model));
    this.#draw();
  }

  #draw() {
    const model = this.#model;
    const width = this.clientWidth;
    if (!model || !width) return;
    const { starts, lines, series } = model;
    const scale = ticks(highest(model), model);
    const axis = scale.map(model.axis ?? model.format);
    const names = lines ? Math.max(...series.map(({ label }) => label.length)) * 7 + 8 : 0;
    this.#left = Math.max(...axis.map((text) => text.length)) * 6.5 + 10;
    this.#room = Math.max(1, width - this.#left - names) / starts.length;
    /** @param {number} value */
    const y = (value) => round(FLOOR - (value / scale[scale.length - 1]) * (FLOOR - TOP));
    /** @param {number} steps */
    const x = (steps) => round(this.#left + steps * this.#room);
    const right = x(starts.length);
    const grid = scale.map((value, i) => [
      svg("path.grid", { d: `M${this.#left} ${y(value)}H${right}` }),
      text("e", this.#left - 8, y(value) + 4, axis[i]),
    ]);
    const below = timeLabels(starts, this.#room).map((i) =>
      text("m", x(i + 0.5), HEIGHT - 6, (new Date(starts[i]).getHours() ? HOUR : DAY).format(starts[i])));
    const plot = lines ? drawLines(model, x, y, right) : drawBars(model, x, y, this.#room);
    this.#drawing.setAttribute("width", String(width));
    fill(this.#drawing, grid, below, plot, drawMarks(model, x), this.#guide);
    this.#read(this.#shown);
  }

  /** @param {KeyboardEvent} event */
  #press(event) {
    const last = (this.#model?.starts.length ?? 0) - 1;
    const i = this.#shown;
    const left = i < 0 ? last : Math.max(0, i - 1);
    const next = { ArrowLeft: left, ArrowRight: Math.min(last, i + 1), Home: 0, End: last };
    const at = event.key === "Escape" && i >= 0 ? -1 : next[/** @type {"Home"} */ (event.key)];
    if (at === undefined) return;
    event.preventDefault();
    this.#read(at);
    this.#said.textContent = at < 0 ? "" : this.#readout.innerText.replace(/\n+/g, ", ");
  }

  /** Show the numbers of a step beside it. @param {number} i */
  #read(i) {
    const model = this.#model;
    const hidden = !(i in (model?.starts ?? []));
    this.#shown = hidden ? -1 : i;
    this.#readout.hidden = hidden;
    this.#guide.toggleAttribute("hidden", hidden);
    if (hidden || !model) return;
    const rows = model.series.map(({ label, kind, values }) => [
      h(`dt.k-${kind}`, h("i"), label),
      h("dd", shown(model, values[i])),
    ]);
    fill(this.#readout, h("b", stepName(model, i)), h("dl", model.lines ? rows : rows.reverse()));
    const middle = this.#left + (i + 0.5) * this.#room;
    this.#guide.setAttribute("d", `M${middle} ${TOP}V${FLOOR}`);
    const width = this.#readout.offsetWidth + 12;
    const left = middle + width > this.clientWidth ? Math.max(0, middle - width) : middle + 12;
    this.#readout.style.setProperty("left", `${left}px`);
  }
}

/** @param {number} value */
const round = (value) => Math.round(value * 10) / 10;

/** @param {string} side @param {number} x @param {number} y @param {string} content */
const text = (side, x, y, content) => svg(`text.${side}`, { x, y }, content);

/** @param {ChartModel} model the highest line, or stack of bars */
function highest({ series, starts, lines }) {
  const sums = starts.map((_, i) => series.reduce((sum, { values }) => sum + (values[i] ?? 0), 0));
  return Math.max(0, ...(lines ? series.flatMap(({ values }) => values.map((value) => value ?? 0)) : sums));
}

/** @param {ChartModel} model @param {Scale} x @param {Scale} y @param {number} room */
function drawBars({ series, starts }, x, y, room) {
  const wide = round(Math.max(1, Math.min(32, room * 0.78, room - 1)));
  const sums = starts.map(() => 0);
  return series.map(({ kind, values }) => {
    const d = values.map((value, i) => {
      if (!value) return "";
      const base = y(sums[i]);
      sums[i] += value;
      const tall = Math.max(1, round(base - y(sums[i])));
      return `M${x(i + 0.5) - wide / 2} ${base}v${-tall}h${wide}v${tall}z`;
    });
    return svg(`path.bar.k-${kind}`, { d: d.join("") });
  });
}

/**
 * Draw lines, with names at their ends that do not overlap.
 * @param {ChartModel} model
 * @param {Scale} x
 * @param {Scale} y
 * @param {number} right
 */
function drawLines({ series }, x, y, right) {
  let free = Infinity;
  /** @param {Series} series */
  const last = ({ values }) => y(values.findLast((value) => value !== null) ?? 0);
  return [...series].sort((a, b) => last(b) - last(a)).map((one) => {
    const d = one.values.map((value, i) => {
      if (value === null) return "";
      const before = one.values[i - 1] ?? null;
      const alone = (before ?? one.values[i + 1] ?? null) === null;
      return `${before === null ? "M" : "L"}${x(i + 0.5)} ${y(value)}${alone ? DOT : ""}`;
    });
    free = Math.min(last(one) + 4, free - 13);
    const name = svg("text.name", { x: right + 6, y: free }, one.label);
    return svg(`g.k-${one.kind}`, svg("path.ln", { d: d.join("") }), name);
  });
}

/** @param {ChartModel} model @param {Scale} x */
function drawMarks({ marks = [], starts, end }, x) {
  let free = 0;
  return marks.map(({ at, label }) => {
    const left = x(place(starts, end, at));
    const line = svg("path.mark", { d: `M${left} ${TOP - 6}V${FLOOR}` });
    if (left < free) return line;
    free = left + label.length * 7 + 8;
    return [line, text("m", left, TOP - 12, label)];
  });
}

/** @param {ChartModel} model @param {number} i */
function stepName({ starts }, i) {
  const days = starts.length > 1 && starts[1] - starts[0] > 72e6;
  return WEEKDAY.format(starts[i]) + (days ? "" : `, ${HOUR.format(starts[i])}`);
}

/** @param {ChartModel} model @param {number | null} value */
const shown = ({ format }, value) => (value === null ? "–" : format(value));

/** @param {ChartModel} model the numbers, for screen readers */
function numbers(model) {
  const { label, series, starts } = model;
  const heads = [t("Time"), ...series.map((one) => one.label)].map((name) => h("th", { scope: "col" }, name));
  const rows = starts.map((_, i) => {
    const cells = series.map(({ values }) => h("td", shown(model, values[i])));
    return h("tr", h("th", { scope: "row" }, stepName(model, i)), cells);
  });
  return h("table", h("caption", label), h("thead", h("tr", heads)), h("tbody", rows));
}

define("line-chart", Chart);
