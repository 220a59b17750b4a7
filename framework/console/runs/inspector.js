/** What is known of a step: input and output, who decided, attributes; and what happened between the parts. */

import { h } from "../core/dom.js";
import { bytes, cost, duration, fullTime, time, tokens } from "../core/format.js";
import { t } from "../core/i18n.js";
import { icon } from "../core/icons.js";
import { decidedText } from "../widgets/approval-record.js";
import { copyButton } from "../widgets/copy.js";
import { diffView } from "../widgets/diff.js";
import { argumentsBlock } from "../widgets/json.js";
import { withPlaces } from "../widgets/place.js";
import { tabs } from "../widgets/tabs.js";
import { textBlock } from "../widgets/text.js";

/** @typedef {import("../types.d.ts").RunDetail} Run */
/** @typedef {import("../widgets/trace-layout.js").Part} Part */

/** @param {Run} run @param {Part[]} parts @param {any[]} events @returns what follows each part: a pause, or nothing */
export function pausesOf(run, parts, events) {
  return parts.map((part, i) => {
    const from = part.start + part.length;
    const next = parts[i + 1];
    if (!next && !run.pending.length) return null;
    if (!next) return { from, to: null, what: run.pending.map(({ tool, kind }) => tool || kind).join(", ") };
    const made = run.decisions.filter(({ at }) => Date.parse(at) >= from - 1000 && Date.parse(at) <= next.start + 1000);
    const what = made.map((each, n) => [n ? "; " : null, decided(each, questionOf(each.confirmation_id, events))]);
    return { from, to: next.start, what: made.length ? what : t("resumed") };
  });
}

/** @param {string} id @param {any[]} events */
export const questionOf = (id, events) =>
  events.findLast((each) => each.event === "confirm_required" && each.id === id);

/** @param {import("../types.d.ts").Decided} made @param {any} question the event that asked */
const decided = (made, question) => [
  h("code", question?.tool || question?.kind || t("question")),
  ` ${decidedText(made, question ?? null).text}`,
];

/**
 * Return the row to look at while none is chosen: what waits, else the first failure, else the first row.
 * @param {Part[]} parts
 */
export function wantedRow(parts) {
  const all = parts.flatMap((part) => part.rows);
  const waits = parts.at(-1)?.rows.find((row) => row.word === "waits");
  return (waits ?? all.find((row) => row.failed && !row.children) ?? all[0])?.key ?? "";
}

/** @typedef {import("../widgets/trace-layout.js").Row} Row */

/**
 * Return the content of the inspector.
 * @param {Row | null} row @param {Run} run @param {any[]} events @param {() => void} close
 */
export function inspect(row, run, events, close) {
  const leave = h("button.ib.run-close", { "aria-label": t("Close"), onclick: close }, icon("x"));
  if (!row) return [leave, h("div.sec-b.dim", t("Select a step to see its input and output."))];
  const panel = h("div.scroll#run-step", { role: "tabpanel", tabindex: "0" });
  const views = { io: () => inputAndOutput(row, run, events), attributes: () => attributes(row) };
  const items = [
    { id: "io", label: t("Input and output") },
    { id: "attributes", label: t("Attributes") },
  ];
  const show = (/** @type {string} */ id) => panel.replaceChildren(...views[/** @type {"io"} */ (id)]());
  show("io");
  return [tabs(items, "io", show, { label: t("Selected step"), panel: "run-step" }), leave, panel];
}

/** @param {Row} row @param {Run} run @param {any[]} events */
function inputAndOutput(row, run, events) {
  const { span, label, kind, word, failed } = row;
  const { attributes: all } = span;
  const tone = failed ? "danger" : word === "waits" ? "human" : word ? "warn" : "ok";
  const state = word === "waits" ? t("needs approval") : word || (failed ? span.error : t("success"));
  const title = h(
    "div.row",
    h(row.code ? "code.strong.cut" : "b.cut", label),
    h("span.grow"),
    h(`span.tag.k-${tone}`, state),
  );
  const id = all["gen_ai.tool.call.id"];
  const call = id ? callOf(id, run, events) : null;
  const made = call ? run.decisions.filter((each) => each.confirmation_id === call.key) : [];
  const head = h("div.sec-b", title, h("dl.facts", factsOf(row, call, made)));
  if (!call) return [head, ...contentOf(span, kind)];
  return [head, ...inputOf(call), ...outputOf(call)];
}

/**
 * Find a tool call in the events: what was asked, what was sent and what came back.
 * @param {string} id @param {Run} run @param {any[]} events
 */
function callOf(id, run, events) {
  const own = events.filter((each) => each.id === id && (each.event === "tool_call" || each.event === "tool_result"));
  const sent = own.findLast((each) => each.event === "tool_call");
  const result = own.findLast((each) => each.event === "tool_result");
  const entry = run.trace.find((each) => each.call_id === id);
  const key = [...((sent ?? result)?.path ?? []), id].join("/");
  return {
    key,
    asked: questionOf(key, events) ?? null,
    arguments: sent?.arguments ?? entry?.action.args ?? null,
    output: result?.result ?? entry?.observation ?? null,
    error: result?.error ?? entry?.error ?? null,
    repairs: entry?.repairs ?? [],
  };
}

/** @param {Row} row @param {ReturnType<typeof callOf> | null} call @param {import("../types.d.ts").Decided[]} made */
function factsOf({ span, used, cost: price, length }, call, made) {
  const all = span.attributes;
  const began = span.start_ns / 1e6;
  const rule = call?.asked?.rule || all["agentsd.tool.rule"];
  /** @type {[string, any][]} */
  const rows = [
    [t("Began"), h("time", { title: fullTime(began) }, time(began))],
    [t("Took"), duration(length)],
    [t("Agent"), all["gen_ai.agent.name"]],
    [t("Model"), all["gen_ai.response.model"] ?? all["gen_ai.request.model"]],
    [t("Tokens"), used && `${tokens(used[0])} ${t("in")}, ${tokens(used[1])} ${t("out")}`],
    [t("Cost"), price ? cost(price) : null],
    [t("Rule"), rule && withPlaces(rule)],
    [t("Risk"), all["agentsd.tool.risk"]],
    [t("Attempts"), all["agentsd.model.attempts"] ?? all["agentsd.tool.attempts"]],
    ...made.map(
      (each) => /** @type {[string, any]} */ ([t("Decided"), decided(each, call?.asked)]),
    ),
    [t("Repairs"), call?.repairs.join("; ")],
    [t("Error"), call?.error ?? span.error],
  ];
  return rows.filter(([, value]) => value || value === 0).flatMap(([name, value]) => [h("dt", name), h("dd", value)]);
}

/** @param {ReturnType<typeof callOf>} call */
function inputOf({ arguments: args, asked }) {
  if (!args) return [];
  const text = JSON.stringify(args, null, 2);
  const before = asked ? JSON.stringify(asked.arguments, null, 2) : text;
  const body = before === text ? argumentsBlock(args) : diffView(before, text);
  return [section(t("Input"), t("as sent to the tool"), text, body)];
}

/** @param {ReturnType<typeof callOf>} call */
function outputOf({ output, error }) {
  const text = output ?? error;
  if (!text) return [];
  const size = bytes(new TextEncoder().encode(text).length);
  const note = h("p.small.dim", t("Untrusted output, shown as plain text."));
  return [section(t("Output"), size, text, textBlock(text), note)];
}

/** @param {import("../types.d.ts").Span} span @param {string} kind content of a span, if traces contain it */
function contentOf({ attributes: all }, kind) {
  const found = [
    ["input.value", t("Input")],
    ["output.value", t("Output")],
  ].filter(([key]) => all[key]);
  if (found.length)
    return found.map(([key, title]) => section(title, "", String(all[key]), textBlock(String(all[key]))));
  if (kind !== "model") return [];
  const why = t("Traces contain texts only if telemetry.content allows it: see Messages.");
  return [h("div.sec-b", h("p.small.dim", why))];
}

/** @param {string} title @param {string} label @param {string} text @param {any[]} body */
function section(title, label, text, ...body) {
  return h("div.sec-b", h("h2", title, h("span.grow"), h("span.label.num", label), copyButton(text)), body);
}

/** @param {Row} row */
function attributes({ span }) {
  const { start_ns: begin, end_ns: end, parent_id: parent, events } = span;
  const times = {
    name: span.name,
    span_id: span.span_id,
    parent_id: parent,
    begin: begin / 1e6,
    ms: (end - begin) / 1e6,
  };
  const more = Object.fromEntries(events.map((each) => [each.name, JSON.stringify(each.attributes)]));
  const rows = Object.entries({ ...times, ...span.attributes, ...more });
  const shown = rows.map(([name, value]) => [h("dt.mono", name), h("dd.mono", String(value))]);
  return [h("div.sec-b", h("dl.facts.attrs", shown))];
}
