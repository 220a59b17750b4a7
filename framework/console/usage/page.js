/** The usage of a period: figures, charts, and a table of agents, models or generations. */

import { get } from "../core/api.js";
import { now } from "../core/clock.js";
import { Component, define, failureNote } from "../core/component.js";
import { fill, h } from "../core/dom.js";
import { language, t } from "../core/i18n.js";
import { icon } from "../core/icons.js";
import { identity } from "../core/live.js";
import { go, link, route } from "../core/route.js";
import { showCharts } from "./charts.js";
import { showFigures, showGroups } from "./figures.js";
import { TITLES } from "./measures.js";

/** @typedef {import("../types.d.ts").UsageSummary} Usage */
/** @typedef {{period: string, by: string, sort: string}} Wanted */

const REFRESH = 60_000;
const PERIODS = { "24h": "24 h", "7d": "7 d", "30d": "30 d", "90d": "90 d" };
const USUAL = { period: "7d", by: "agent", sort: "runs" };
const DATE = new Intl.DateTimeFormat(language === "zh" ? "zh-CN" : "en-GB", { day: "numeric", month: "short" });

class UsagePage extends Component {
  #asked = 0;
  #caption = h("span.small.dim");
  #title = h("h2");
  #body = h("div.stack");
  #figures = h("dl.figs.kpis");
  #charts = h("div.charts");
  #groups = h("div.scrollx");

  start() {
    const titles = Object.fromEntries(Object.entries(TITLES).map(([id, title]) => [id, title()]));
    const periods = choices(t("Time"), PERIODS, (id) => this.#go({ period: id }));
    const groups = choices(t("Group by"), titles, (id) => this.#go({ by: id }));
    const filters = h("div.filters", periods.node, groups.node, h("span.grow"), this.#caption);
    fill(this, h("div.wrapper", filters, this.#body));
    this.watch(route, ({ page }) => {
      if (page !== "usage") return;
      periods.select(asked().period);
      groups.select(asked().by);
      this.#load();
    });
    this.every(REFRESH, () => this.#load());
  }

  /** @param {Partial<Wanted>} changes */
  #go(changes) {
    const wanted = Object.entries({ ...asked(), ...changes });
    const unusual = wanted.filter(([name, value]) => value !== USUAL[/** @type {"by"} */ (name)]);
    go(link("usage", Object.fromEntries(unusual)), { replace: true });
  }

  #load() {
    const number = ++this.#asked;
    const isLast = () => number === this.#asked && !this.classList.toggle("loading", false);
    this.classList.add("loading");
    const tz = Intl.DateTimeFormat().resolvedOptions().timeZone;
    const query = { ...period(asked().period, now()), by: asked().by, tz };
    this.load(
      get("/usage", query, { signal: this.stopped }),
      (usage) => isLast() && this.#show(usage),
      (error) => isLast() && fill(this.#body, failureNote(error, () => this.#load())),
      this.#body,
    );
  }

  /** @param {Usage} usage */
  #show(usage) {
    const n = parseInt(asked().period, 10);
    const before = n === 24 ? t("the 24 hours before") : t("the {n} days before", { n });
    const range = DATE.formatRange(new Date(usage.since), new Date(usage.until));
    this.#caption.textContent = t("{range}, compared with {before}", { range, before });
    if (!usage.total.runs) return fill(this.#body, this.#empty());
    if (!this.#figures.isConnected) {
      const head = h("header", this.#title, h("span.grow"), memoryNote());
      fill(this.#body, this.#figures, this.#charts, h("section.card", head, this.#groups));
    }
    this.#title.textContent = t("By {group}", { group: TITLES[usage.by]().toLowerCase() });
    showFigures(this.#figures, usage);
    showCharts(this.#charts, usage);
    showGroups(this.#groups, usage, asked().sort, (sort) => this.#go({ sort }));
  }

  #empty() {
    const action = { onclick: () => this.#go({ period: "90d" }) };
    const why = t("Figures appear with the first run. Runs that retention has deleted do not count.");
    const longer = asked().period === "90d" ? null : h("button.btn", action, t("Show 90 days"));
    return h("div.empty", icon("usage"), h("h2", t("No runs in this period")), h("p", why), memoryNote(), longer);
  }
}

/** What the address asks for. @returns {Wanted} */
function asked() {
  const { query } = route.value;
  const [name, by] = [query.get("period") ?? "", query.get("by") ?? ""];
  return {
    period: name in PERIODS ? name : USUAL.period,
    by: by in TITLES ? by : USUAL.by,
    sort: query.get("sort") ?? USUAL.sort,
  };
}

/**
 * Return the period that a name such as `7d` stands for, from the beginning of an hour or a day.
 * @param {string} name
 * @param {number} now
 */
export function period(name, now) {
  const since = new Date(now);
  if (name === "24h") since.setHours(since.getHours() - 23, 0, 0, 0);
  else {
    since.setDate(since.getDate() - parseInt(name, 10) + 1);
    since.setHours(0, 0, 0, 0);
  }
  return { since: since.toISOString(), until: new Date(now).toISOString() };
}

function memoryNote() {
  if (identity.value?.server.stored !== false) return null;
  return h("span.small.dim", t("This server keeps its runs in memory: figures begin with its start."));
}

/**
 * Return a row of buttons of which one is pressed.
 * @param {string} label
 * @param {Record<string, string>} items
 * @param {(id: string) => void} onSelect
 */
function choices(label, items, onSelect) {
  const button = (/** @type {string} */ id) => h("button", { onclick: () => onSelect(id) }, items[id]);
  const buttons = Object.keys(items).map(button);
  /** @param {string} chosen */
  const select = (chosen) =>
    Object.keys(items).forEach((id, i) => buttons[i].setAttribute("aria-pressed", String(id === chosen)));
  return { node: h("div.seg", { role: "group", "aria-label": label }, buttons), select };
}

export const tag = "page-usage";
define(tag, UsagePage);
