/** The processes of a fleet: a line each, which unfolds to what the process says about itself. */

import { fill, h, keyed } from "../core/dom.js";
import { ago, digest, fullTime, time } from "../core/format.js";
import { t, tn } from "../core/i18n.js";
import { icon } from "../core/icons.js";
import { link } from "../core/route.js";
import { commonDigests, isCommon } from "./differences.js";

/** @typedef {import("../types.d.ts").FleetProcess} Process */
/** @typedef {import("../types.d.ts").Fleet} Fleet */

export class ProcessList {
  #rows = h("div.procs");
  element = h("section.card", h("header", h("h2", t("Processes"))), heads(), this.#rows);

  /** @param {Fleet} fleet */
  show(fleet) {
    const common = commonDigests(fleet);
    const key = (/** @type {Process} */ { host, pid, name, started_at }) => [host, pid, name, started_at].join(" ");
    keyed(this.#rows, fleet.processes, key, create, (row, process) => draw(row, process, common));
  }

  /** Put the focus on the next line. @param {number} by */
  step(by) {
    const lines = [...this.#rows.querySelectorAll("summary")];
    const at = lines.indexOf(/** @type {HTMLElement} */ (document.activeElement));
    lines[at < 0 ? (by > 0 ? 0 : lines.length - 1) : at + by]?.focus();
  }
}

const heads = () => {
  const names = [t("Process"), t("Running"), t("Takes"), t("Agents"), t("Last seen")];
  return h("div.proc.label", { "aria-hidden": "true" }, h("span"), names.map((name) => h("span", name)));
};

function create() {
  const line = h("summary.proc");
  line.addEventListener("keydown", ({ key }) => {
    if (key === "ArrowRight" || key === "ArrowLeft") row.open = key === "ArrowRight";
  });
  const row = h("details", line, h("div.in"));
  return row;
}

/** @param {HTMLDetailsElement} row @param {Process} process @param {Record<string, string>} common */
function draw(row, process, common) {
  const [line, about] = row.children;
  row.classList.toggle("gone", !process.alive);
  fill(line,
    icon("right", { size: 14 }),
    h("span.who", h("b.cut", { title: process.name }, process.name), h("small.small.dim.cut", subtitle(process))),
    load(process),
    h("span.sec.takes", takes(process)),
    h("span.row.wrap.has", agents(process, common)),
    process.alive
      ? h("time.dim.seen", { title: fullTime(process.seen_at) }, ago(process.seen_at))
      : h("span.status.k-danger.seen", icon("off"), h("span", t("lost"), " ", ago(process.seen_at))));
  fill(about, facts(process), digests(process, common));
}

/** @param {Process} process */
const subtitle = ({ kind, version, host }) => [kind, version, host].filter(Boolean).join(" · ");

/** @param {Process} process */
function load({ running, capacity, works, alive }) {
  if (!works) return h("span.load.dim", t("none"));
  const share = capacity ? running / capacity : 0;
  const text = h("span.num", t("{running} of {capacity}", { running, capacity }));
  const props = { value: String(running), max: String(capacity || 1), "aria-hidden": "true" };
  return h("span.load", text, alive ? h(`progress.k-${share >= 1 ? "warn" : "accent"}`, props) : null);
}

/** What a process executes. @param {Process} process */
function takes({ works, queues, only_agents: agents }) {
  if (!works) return t("accepts runs, executes none");
  const named = [
    queues?.length && t("queues {names}", { names: queues.join(", ") }),
    agents?.length && t("agents {names}", { names: agents.join(", ") }),
  ];
  return named.filter(Boolean).join(" · ") || t("all runs");
}

/** @param {Process} process @param {Record<string, string>} common */
function agents({ agents: own, problems, alive }, common) {
  const names = Object.keys(own);
  const others = alive ? names.filter((name) => !isCommon(common, name, own[name])) : [];
  return [
    others.map((name) => h("span.tag.k-warn", { title: own[name] }, name, h("code", digest(own[name])))),
    others.length < names.length ? h("span.dim.nw", tn(names.length, "1 agent", "{n} agents")) : null,
    problems ? h("span.tag.k-danger", icon("alert"), tn(problems, "1 problem", "{n} problems")) : null,
  ];
}

/** @param {Process} process */
function facts({ host, pid, started_at: started, generation, begun_per_second: rate }) {
  const found = {
    [t("Host")]: host,
    [t("Process id")]: pid,
    [t("Started")]: h("time", { title: fullTime(started) }, time(started)),
    [t("Generation")]: generation && `g${generation}`,
    [t("Begun per second")]: String(rate),
  };
  const rows = Object.entries(found).filter(([, value]) => value);
  return h("dl.facts", rows.map(([name, value]) => [h("dt", name), h("dd", value)]));
}

/** @param {Process} process @param {Record<string, string>} common */
function digests({ agents: own }, common) {
  const rows = Object.entries(own).map(([name, value]) => [
    h("dt", h("a.lk", { href: link("agents", name) }, name)),
    h(`dd.mono${isCommon(common, name, value) ? "" : ".ink.k-warn"}`, { title: value }, digest(value)),
  ]);
  return rows.length ? h("dl.facts", rows) : h("p.dim", t("It has no agents."));
}
