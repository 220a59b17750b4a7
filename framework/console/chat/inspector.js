/** What is known of the selected step, or of the one that waits or runs; the run with its budget; its events. */

import { apiPath, get } from "../core/api.js";
import { Component, define } from "../core/component.js";
import { fill, h } from "../core/dom.js";
import { cost, digest, duration, runName, tokens } from "../core/format.js";
import { t } from "../core/i18n.js";
import { icon } from "../core/icons.js";
import { live, may } from "../core/live.js";
import { link } from "../core/route.js";
import { copyButton } from "../widgets/copy.js";
import { argumentsBlock } from "../widgets/json.js";
import { withPlaces } from "../widgets/place.js";
import { statusLabel } from "../widgets/status.js";
import { tabs } from "../widgets/tabs.js";
import { textBlock, visible } from "../widgets/text.js";
import { statusWord } from "../widgets/tool-card.js";

const WARN = 0.8;

/** @typedef {import("../widgets/run-model.js").RunModel} RunModel */
/** @typedef {import("../types.d.ts").RunItem} RunItem */

export class ChatInspector extends Component {
  #tab = "step";
  #row = h("div.tabs");
  #body = h("div.scroll#chat-insp", { role: "tabpanel", tabindex: 0 });
  #shown = "";
  /** @type {Map<string, Record<string, number>>} by agent */
  #limits = new Map();

  start() {
    this.className = "insp";
    this.setAttribute("aria-label", t("Inspector"));
    this.setAttribute("role", "complementary");
    const props = { "aria-label": t("Close"), onclick: () => this.classList.remove("open") };
    fill(this, this.#row, h("button.ib.sheet", props, icon("x")), this.#body);
  }

  /** @param {RunModel | null} run @param {string | null} selected key of the selected item */
  show(run, selected) {
    const item = run ? (find(run.items, selected) ?? present(run.items)) : undefined;
    const about = run && [run.runId, run.seq, run.status, run.tokens, run.steps];
    const state = JSON.stringify([this.#tab, about, item?.key, item?.progress]);
    if (state === this.#shown) return;
    this.#shown = state;
    const names = [
      { id: "step", label: t("Step") },
      { id: "run", label: t("Run") },
      { id: "events", label: t("Events"), count: run?.seq ?? 0 },
    ];
    const select = (/** @type {string} */ id) => {
      this.#tab = id;
      this.show(run, selected);
    };
    const row = tabs(names, this.#tab, select, { label: t("Inspector"), panel: "chat-insp" });
    const focused = this.#row.contains(document.activeElement);
    this.#row.replaceWith(row);
    this.#row = row;
    if (focused) /** @type {HTMLElement | null} */ (row.querySelector("[tabindex='0']"))?.focus();
    if (run?.agent) this.#learn(run.agent, run, selected);
    fill(this.#body, run ? this.#content(run, item) : hint());
  }

  /** @param {RunModel} run @param {RunItem | undefined} item */
  #content(run, item) {
    if (this.#tab === "run") return [runFacts(run), this.#budget(run), todo(run)];
    if (this.#tab === "step") return [item ? step(item) : hint(), this.#budget(run)];
    const open = h("a.lk", { href: link("runs", run.runId, { tab: "events" }) }, t("Open the run to read them"));
    return h("section.sec-b", h("p.small.sec", t("{n} events.", { n: run.seq }), " ", open));
  }

  /** @param {string} agent @param {RunModel} run @param {string | null} selected fetch the limits of an agent, once */
  #learn(agent, run, selected) {
    const exists = live.value?.agents.includes(agent) ?? true; // it may have been removed since
    if (this.#limits.has(agent) || !may("read") || !exists) return;
    this.#limits.set(agent, {});
    void get(apiPath`/agents/${agent}`).then(({ policy }) => {
      this.#limits.set(agent, policy.limits);
      this.#shown = "";
      if (this.isConnected) this.show(run, selected);
    }).catch(() => {});
  }

  /** @param {RunModel} run */
  #budget(run) {
    const limits = this.#limits.get(run.agent) ?? {};
    const rows = [
      bar(t("Tokens"), run.tokens, limits.max_total_tokens, tokens),
      bar(t("Steps"), run.steps, limits.max_steps, String),
      run.cost ? bar(t("Cost"), run.cost, limits.max_cost_usd, cost) : null,
    ];
    return h("section.sec-b", h("h2", t("Budget of this run")), h("div.budget", rows));
  }
}

/** @param {string} label @param {number} used @param {number | undefined} limit @param {(n: any) => string} format */
function bar(label, used, limit, format) {
  const kind = limit && used >= WARN * limit ? "k-warn" : "";
  const line = limit ? h("progress", { value: used, max: limit, "aria-label": label, class: kind }) : h("span");
  const most = limit ? h("span.dim", ` / ${format(limit)}`) : null;
  return [h("span", label), line, h("span", h("span.ink", { class: kind }, format(used)), most)];
}

/** @param {RunItem[]} items @param {string | null} key @returns {RunItem | undefined} */
function find(items, key) {
  for (const item of key ? items : []) {
    const found = item.key === key ? item : find(item.items ?? [], key);
    if (found) return found;
  }
}

/** @param {RunItem[]} items the step that waits or runs */
function present(items) {
  const calls = items.filter(({ kind }) => kind === "call");
  const last = (/** @type {string} */ wanted) => calls.findLast(({ status }) => status === wanted);
  return last("waiting") ?? last("running") ?? calls.at(-1);
}

const hint = () => h("section.sec-b", h("p.small.dim", t("Choose a step to see what happened in it.")));

/** @param {[string, any][]} rows */
const facts = (rows) => h("dl.kv", rows.map(([name, value]) => value && [h("dt", name), h("dd", value)]));

/** @param {RunItem} item */
function step({ id, tool = "", status = "", arguments: args, result, error, ms, confirmation: asked }) {
  const rows = /** @type {[string, any][]} */ ([
    [t("Status"), statusWord(status, error)],
    [t("Time"), ms === undefined ? null : duration(ms)],
    [t("Call"), h("code.mono", id)],
    [t("Error"), error && withPlaces(error)],
  ]);
  const why = /** @type {[string, any][]} */ ([
    [t("Reason"), visible(asked?.reason ?? "")],
    [t("Rule"), withPlaces(asked?.rule ?? "")],
    [t("Risk"), asked?.risk],
  ]);
  return [
    h("section.sec-b", h("div.row", icon("tool"), h("code.strong.cut", tool)), facts(rows)),
    asked && h("section.sec-b", h("h2", t("Why approval is required")), facts(why)),
    args && part(t("Arguments"), JSON.stringify(args, null, 2), argumentsBlock(args, { lines: 40 })),
    result && !error ? part(t("Result"), result, textBlock(result)) : null,
  ];
}

/** @param {string} title @param {string} text @param {HTMLElement} block */
function part(title, text, block) {
  return h("section.sec-b", h("h2", title, h("span.grow"), copyButton(text)), block);
}

/** @param {RunModel} run */
function runFacts(run) {
  const old = live.value && live.value.generation !== run.generation ? ` ${t("began before the last reload")}` : "";
  const rows = /** @type {[string, any][]} */ ([
    [t("Run"), h("a.lk.mono", { href: link("runs", run.runId), title: run.runId }, runName(run.runId))],
    [t("Status"), statusLabel(run.status, run.finishReason)],
    [t("Agent"), run.agent],
    [t("Chosen by"), visible(run.reason)],
    [t("Executor"), run.executor],
    [t("Generation"), [`g${run.generation} `, h("span.hash", digest(run.digest)), old]],
  ]);
  return h("section.sec-b", facts(rows));
}

/** @param {RunModel} run */
function todo({ todo: items }) {
  if (!items.length) return null;
  const marks = /** @type {Record<string, string>} */ ({ done: "check", doing: "right" });
  const rows = items.map(({ task, status }) => {
    const drawn = marks[status] ? icon(marks[status]) : h("i.todo");
    return h("li.row", drawn, h("span", visible(task)), h("span.sr", status));
  });
  return h("section.sec-b", h("h2", t("To-do list")), h("ul.todos", rows));
}

define("chat-inspector", ChatInspector);
