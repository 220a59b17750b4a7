/** Two runs beside each other: what they answered, what they did, what they used, and the files they ran on. */

import { apiPath, get } from "../core/api.js";
import { Component, define, failureNote, waitNote } from "../core/component.js";
import { fill, h } from "../core/dom.js";
import { cost, duration, fullTime, runName, time, tokens } from "../core/format.js";
import { t, tn } from "../core/i18n.js";
import { icon } from "../core/icons.js";
import { onKeys } from "../core/keys.js";
import { go, link, route } from "../core/route.js";
import { diffView } from "../widgets/diff.js";
import { argumentText } from "../widgets/json.js";
import { markdown } from "../widgets/markdown.js";
import { tabs } from "../widgets/tabs.js";
import { visible } from "../widgets/text.js";
import { runStatus } from "../widgets/status.js";

/** @typedef {import("../types.d.ts").RunDetail} Run */
/** @typedef {{tool: string, arguments: Record<string, unknown>, status: string, result?: unknown,
 *   elapsed_ms?: number}} Call */

/** Product of the numbers of calls up to which they are aligned; beyond, the n-th is beside the n-th. */
const MOST_PAIRS = 1_000_000;

class RunCompare extends Component {
  #asked = "";

  start() {
    const swap = () => {
      const [a = "", b = ""] = route.value.parts;
      go(link("compare", b, a), { replace: true });
    };
    onKeys(null, { s: swap }, this.stopped);
    this.watch(route, ({ page, parts: [a = "", b = ""] }) => page === "compare" && this.#read(a, b));
  }

  /** @param {string} a @param {string} b */
  #read(a, b) {
    if (!a || !b) return fill(this, nothing());
    const asked = `${a} ${b}`;
    if (asked === this.#asked) return;
    this.#asked = asked;
    fill(this);
    const again = () => ((this.#asked = ""), this.#read(a, b));
    const failed = (/** @type {Error} */ error) =>
      asked === this.#asked && fill(this, h("div.wrapper", failureNote(error, again)));
    const both = Promise.all([a, b].map((id) => get(apiPath`/runs/${id}`)));
    void this.load(both, ([one, other]) => asked === this.#asked && this.#draw(one, other), failed);
  }

  /** @param {Run} a @param {Run} b */
  #draw(a, b) {
    fill(
      this,
      h(
        "div.wrapper",
        h("h2.sr", t("Compare two runs")),
        heads(a, b),
        figureTable(a, b),
        section(t("Answers"), answers(a, b)),
        section(t("Calls"), callTable(callsOf(a), callsOf(b))),
        section(t("Files and prompts"), files(a, b)),
      ),
    );
  }
}

/** What is shown if the address names no two runs. */
function nothing() {
  const choose = h("a.btn.sm", { href: link("runs", { compare: "choose" }) }, t("Choose two runs"));
  const how = t("Or open a run, and compare it with the turn before.");
  return h("div.empty", icon("compare"), h("h2", t("Two runs are needed")), h("p", how), choose);
}

/** @param {string} title @param {any} content */
const section = (title, content) => h("section.card", h("header", h("h2", title)), content);

/** @param {Run} run */
const questionOf = ({ messages, earlier_messages: n }) => messages[n]?.content.trim() ?? "";

/** @param {Run} a @param {Run} b */
function heads(a, b) {
  const same = questionOf(a) === questionOf(b);
  const head = (/** @type {Run} */ run, /** @type {string} */ name) => {
    const title = h("a.lk", { href: link("runs", run.run_id) }, runName(run.run_id));
    const began = h("time.dim", { title: fullTime(run.created_at) }, time(run.created_at));
    const about = [runStatus(run), run.agent && h("span", run.agent), h("span.hash", `g${run.generation}`), began];
    return h(
      "section.card.in",
      h("p.row.wrap", h("b.tag", name), title, about),
      h("p.said", visible(questionOf(run))),
    );
  };
  const note = same ? h("p.dim.small.both", t("Both have the same question.")) : null;
  return h("div.two", head(a, "A"), head(b, "B"), note);
}

/** @param {Run} a @param {Run} b */
function figureTable(a, b) {
  /** @type {[string, (run: Run) => number | null, (value: any) => any][]} */
  const rows = [
    [t("Cost"), (run) => run.usage.cost_usd, cost],
    [t("Tokens"), (run) => run.usage.total_tokens, tokens],
    [t("Tokens in"), (run) => run.usage.prompt_tokens, tokens],
    [t("Tokens out"), (run) => run.usage.completion_tokens, tokens],
    [t("Active"), (run) => run.elapsed_ms, duration],
    [t("Steps"), (run) => run.steps, String],
    [t("Calls"), (run) => callsOf(run).length, String],
  ];
  const cells = rows.map(([name, of, shown]) => {
    const [one, other] = [of(a), of(b)];
    return h(
      "tr",
      h("th", { scope: "row" }, name),
      h("td.r", shown(one)),
      h("td.r", shown(other)),
      h("td.r.dim", change(one, other, shown)),
    );
  });
  const head = h("tr", h("td"), h("th.r", "A"), h("th.r", "B"), h("th.r", t("From A to B")));
  const name = h("caption.sr", t("Figures of both runs"));
  return h("div.card", h("table.table.cmp", name, h("thead", head), h("tbody", cells)));
}

/** @param {number | null} a @param {number | null} b @param {(value: any) => any} shown */
function change(a, b, shown) {
  if (a === null || b === null) return "–";
  if (a === b) return "=";
  const share = a ? ` (${b > a ? "+" : "−"}${Math.round((Math.abs(b - a) / a) * 100)} %)` : "";
  return [b > a ? "+" : "−", shown(Math.abs(b - a)), share];
}

/** @param {Run} a @param {Run} b */
function answers(a, b) {
  const none = (/** @type {Run} */ run) => run.error?.message ?? run.finish_reason;
  const text = (/** @type {Run} */ run) => run.output || none(run);
  if (text(a) === text(b)) return h("div.in", h("p.dim.small", t("Both answers are the same.")), prose(a));
  const views = {
    beside: () => h("div.two", h("div", h("b.tag", "A"), prose(a)), h("div", h("b.tag", "B"), prose(b))),
    lines: () => diffView(text(a), text(b)),
  };
  const props = { role: "tabpanel", tabindex: "0", "aria-label": t("Answers") };
  const panel = h("div.in#cmp-answers", props, views.beside());
  const items = [
    { id: "beside", label: t("Beside each other") },
    { id: "lines", label: t("Differences") },
  ];
  const select = (/** @type {string} */ id) => fill(panel, views[/** @type {"lines"} */ (id)]());
  const options = { label: t("View of the answers"), kind: /** @type {const} */ ("seg"), panel: "cmp-answers" };
  return [h("div.in.bar-c", tabs(items, "beside", select, options)), panel];
}

/** @param {Run} run */
function prose(run) {
  if (run.output) return h("div.prose", markdown(run.output));
  return h("p.dim", t("No answer: {reason}", { reason: run.error?.message ?? run.finish_reason }));
}

/** @param {Run} run @returns {Call[]} */
const callsOf = (run) => /** @type {Call[]} */ (run.tool_calls);

/**
 * Return the calls of both runs in pairs: equal ones first of all, then calls of one tool with other arguments.
 * @param {Call[]} a @param {Call[]} b
 * @returns {[Call | null, Call | null][]} null: the other run has no such call
 */
export function alignCalls(a, b) {
  if (a.length * b.length > MOST_PAIRS) {
    return Array.from({ length: Math.max(a.length, b.length) }, (_, i) => [a[i] ?? null, b[i] ?? null]);
  }
  const keys = [a, b].map((calls) => calls.map((call) => JSON.stringify(call.arguments)));
  const fits = (/** @type {number} */ i, /** @type {number} */ j) =>
    a[i].tool !== b[j].tool ? 0 : keys[0][i] === keys[1][j] ? 3 : 2;
  const width = b.length + 1;
  const best = new Uint32Array((a.length + 1) * width); // of what follows each pair of places
  for (let i = a.length - 1; i >= 0; i -= 1) {
    for (let j = b.length - 1; j >= 0; j -= 1) {
      const at = i * width + j;
      const fit = fits(i, j);
      best[at] = Math.max(best[at + width], best[at + 1], fit ? best[at + width + 1] + fit : 0);
    }
  }
  /** @type {[Call | null, Call | null][]} */
  const pairs = [];
  for (let i = 0, j = 0; i < a.length || j < b.length; ) {
    const at = i * width + j;
    const fit = i < a.length && j < b.length ? fits(i, j) : 0;
    if (fit && best[at] === best[at + width + 1] + fit) pairs.push([a[i++], b[j++]]);
    else if (j >= b.length || (i < a.length && best[at] === best[at + width])) pairs.push([a[i++], null]);
    else pairs.push([null, b[j++]]);
  }
  return pairs;
}

/** @param {Call[]} a @param {Call[]} b */
function callTable(a, b) {
  if (!a.length && !b.length) return h("p.in.dim", t("Neither run called a tool."));
  const cell = (/** @type {Call | null} */ call, /** @type {string} */ name) => {
    if (!call) return h("td.dim", h("span.sr", name, " "), t("no such call"));
    const bad = call.status !== "success";
    const took = call.elapsed_ms ? duration(call.elapsed_ms) : null;
    const how = [bad ? call.status : null, took].filter(Boolean).join(" · ");
    return h(
      "td",
      h("span.sr", name, " "),
      h("code.strong", call.tool),
      " ",
      h("code", argumentText(call.arguments)),
      how && h(`span.small.k-${bad ? "danger" : "none"}`, " ", how),
    );
  };
  const rows = alignCalls(a, b).map(([one, other]) => {
    const shown = (/** @type {Call} */ call) => JSON.stringify([call.arguments, call.status]);
    const same = one && other && shown(one) === shown(other);
    const word = same ? t("the same") : one && other ? t("changed") : one ? t("only A") : t("only B");
    const tone = same ? "none" : one && other ? "warn" : one ? "danger" : "ok";
    return h("tr", cell(one, "A"), cell(other, "B"), h("td.r", h(`span.tag.k-${tone}`, word)));
  });
  const head = h("tr", h("th", "A"), h("th", "B"), h("th.r", h("span.sr", t("Difference"))));
  return h("table.table.cmp.calls-c", h("caption.sr", t("Calls of both runs")), h("thead", head), h("tbody", rows));
}

/** @param {Run} a @param {Run} b */
function files(a, b) {
  const box = h("div.in.stack", { "aria-busy": "true" }, waitNote());
  const done = (/** @type {any[]} */ nodes) => (box.removeAttribute("aria-busy"), fill(box, nodes));
  const read = () => {
    fill(box, waitNote());
    Promise.all([a, b].map(({ run_id: id }) => get(apiPath`/runs/${id}/files`))).then(
      ([one, other]) => done(fileDifferences(one, other)),
      (error) => done([failureNote(error, read)]),
    );
  };
  if (a.digest === b.digest && a.agent === b.agent) done([h("p.dim", t("Both ran on the same files."))]);
  else read();
  return box;
}

/** @param {import("../types.d.ts").RunFiles} a @param {import("../types.d.ts").RunFiles} b */
function fileDifferences(a, b) {
  if (!a.stored || !b.stored) return [h("p.dim", t("The files of a run are not stored: set store.url."))];
  const own = (/** @type {import("../types.d.ts").RunFiles} */ found) =>
    new Map(found.files.filter(({ change }) => change !== "added").map(({ path, text }) => [path, text ?? ""]));
  const [one, other] = [own(a), own(b)];
  const paths = [...new Set([...one.keys(), ...other.keys()])].sort();
  const differing = paths.filter((path) => one.get(path) !== other.get(path));
  if (!differing.length) return [h("p.dim", t("Both ran on the same files."))];
  const same = paths.length - differing.length;
  const cards = differing.map((path) => {
    const word = !one.has(path) ? t("only B") : !other.has(path) ? t("only A") : t("changed");
    const head = h("summary.row", icon("right", { size: 12 }), h("code.cut.grow", path), h("span.tag.k-warn", word));
    const body = h("div.in", diffView(one.get(path) ?? "", other.get(path) ?? ""));
    return h("details.card.run-file", { open: true }, head, body);
  });
  const rest = tn(same, "1 other file is the same", "{n} other files are the same");
  return [...cards, same ? h("p.dim.small", rest) : null];
}

export const tag = "page-compare";
define(tag, RunCompare);
