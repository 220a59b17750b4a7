/** The fleet: the processes that share the store, what waits where and why, and what starts runs by itself. */

import { get } from "../core/api.js";
import { Component, define } from "../core/component.js";
import { fill, h } from "../core/dom.js";
import { duration } from "../core/format.js";
import { t } from "../core/i18n.js";
import { icon } from "../core/icons.js";
import { onKeys } from "../core/keys.js";
import { identity, may } from "../core/live.js";
import { link } from "../core/route.js";
import { agentDifferences, versionNote } from "./differences.js";
import { ProcessList } from "./processes.js";
import { triggers } from "./triggers.js";
import { handedOn, waiting } from "./waiting.js";

/** @typedef {import("../types.d.ts").Fleet} Fleet */
/** @typedef {import("../types.d.ts").TriggerReport} TriggerReport */

const REFRESH = 4_000;

class FleetPage extends Component {
  #figures = h("dl.figs.kpis");
  #notes = h("div.stack");
  #processes = new ProcessList();
  #rest = h("div.stack");

  start() {
    this.#load();
    this.every(REFRESH, () => this.#load());
    const keys = { j: () => this.#processes.step(1), k: () => this.#processes.step(-1) };
    onKeys(null, keys, this.stopped);
  }

  #load() {
    const options = { signal: this.stopped };
    const asked = Promise.all([get("/fleet", {}, options), get("/triggers", {}, options)]);
    // What is shown stays after a failure: the note of a lost connection says why it is old.
    const failed = this.#figures.isConnected ? () => {} : undefined;
    this.load(asked, ([fleet, { items }]) => this.#show(fleet, items), failed);
  }

  /** @param {Fleet} fleet @param {TriggerReport[]} starters */
  #show(fleet, starters) {
    if (![fleet.processes, fleet.waiting, starters].some((items) => items.length)) {
      return fill(this, h("div.wrapper", empty()));
    }
    const focused = document.activeElement?.getAttribute("href");
    fill(this.#figures, figures(fleet));
    fill(this.#notes, versionNote(fleet), agentDifferences(fleet));
    this.#processes.show(fleet);
    const act = (/** @type {Promise<unknown>} */ change) => void this.load(change, () => this.#load());
    fill(this.#rest, waiting(fleet.waiting), handedOn(fleet.handed_on), triggers(starters, act),
      fleet.processes.length < 2 ? alone() : null);
    const parts = [this.#figures, this.#notes, this.#processes.element, this.#rest];
    if (!this.#figures.isConnected) fill(this, h("div.wrapper", parts));
    for (const place of this.querySelectorAll("a")) if (place.getAttribute("href") === focused) place.focus();
  }
}

/** @param {Fleet} fleet */
function figures({ processes, waiting: groups, paused, running }) {
  const live = processes.filter(({ alive }) => alive);
  const sum = (/** @type {any[]} */ items, /** @type {string} */ key) =>
    items.reduce((total, one) => total + one[key], 0);
  const count = sum(groups, "count");
  const oldest = Math.max(0, ...groups.map(({ oldest_seconds: seconds }) => seconds));
  const lost = processes.length - live.length;
  const time = duration(seconds(oldest));
  const rate = sum(live, "begun_per_second");
  const asks = h("a.ink.k-human", { href: link("approvals") }, paused);
  return [
    figure(t("Processes"), live.length, lost ? h("span.delta.k-danger", t("{n} lost", { n: lost })) : null),
    figure(t("Running"), running, h("small", t("of {n}", { n: sum(live, "capacity") }))),
    figure(t("Begun per second"), Number(rate.toFixed(rate < 10 ? 1 : 0))),
    figure(t("Waiting"), count.toLocaleString("en-US"), count ? h("small", t("oldest {time}", { time })) : null),
    figure(t("Needs approval"), paused && may("decide") ? asks : paused),
  ];
}

/** Whole seconds, in milliseconds. @param {number} value */
const seconds = (value) => Math.max(1, Math.round(value)) * 1000;

/** @param {string} label @param {Node | string | number} value @param {Node | null} [beside] */
const figure = (label, value, beside = null) => h("div", h("dt", label), h("dd", value, beside));

function alone() {
  const stored = identity.value?.server.stored;
  const how = stored
    ? t("Other servers and workers with the same database appear here.")
    : t("This server keeps its runs in memory, so no other process can share them.");
  return h("p.small.dim.alone", how);
}

function empty() {
  const why = t("Servers and workers report here each two seconds. Start one with agentsd serve or agentsd worker.");
  return h("div.empty", icon("fleet"), h("h2", t("No process reports to this store")), h("p", why));
}

export const tag = "page-fleet";
define(tag, FleetPage);
