/** Arranges the spans of a run as rows on a time line. No DOM. */

/** @typedef {import("../types.d.ts").Span} Span */
/** @typedef {Map<string | null, Span[]>} Below spans by their parent */
/** @typedef {ReturnType<typeof rowOf>} Row times are milliseconds since the part began; `word`: why it ended badly */
/** @typedef {ReturnType<typeof partOf>} Part from the start of a run, or a resume, until it ends or pauses */

/** @type {[RegExp, string][]} */
const KINDS = [
  [/^(chat |conversation\.)/, "model"],
  [/^plan/, "plan"],
  [/^agent\.route/, "route"],
  [/^invoke_workflow/, "run"],
  [/^execute_tool/, "tool"],
];
const NAMED = /^(execute_tool|invoke_agent|plan\.step|chat) (.+)$/s;

/**
 * Return the parts of a run. Spans whose parent has not ended yet are at the top level.
 * @param {readonly Span[]} spans
 */
export function layout(spans) {
  const known = new Set(spans.map((span) => span.span_id));
  /** @type {Below} */
  const below = new Map([[null, []]]);
  for (const span of [...spans].sort((a, b) => a.start_ns - b.start_ns || b.end_ns - a.end_ns)) {
    const parent = span.parent_id !== null && known.has(span.parent_id) ? span.parent_id : null;
    const siblings = below.get(parent);
    if (siblings) siblings.push(span);
    else below.set(parent, [span]);
  }
  /** @type {Span[][]} */
  const groups = [];
  for (const span of below.get(null) ?? []) {
    const first = groups.at(-1)?.[0];
    if (first && !isRun(span) && !(isRun(first) && span.start_ns >= first.end_ns)) groups.at(-1)?.push(span);
    else groups.push([span]);
  }
  return groups.map((roots, i) => partOf(i + 1, roots, below));
}

/** @param {Span} span the root span of a part */
const isRun = (span) => span.name.startsWith("invoke_workflow");

/** @param {number} number @param {Span[]} roots @param {Below} below */
function partOf(number, roots, below) {
  const begin = roots[0].start_ns;
  /** @type {Row[]} */
  const rows = [];
  /** @param {Span} span @param {number} level @param {string | null} parent @returns {Row} */
  const add = (span, level, parent) => {
    const children = below.get(span.span_id) ?? [];
    const row = rowOf(span, level, parent, children.length, begin);
    rows.push(row);
    for (const child of children) {
      const { used, cost } = add(child, level + 1, span.span_id);
      if (used) row.used = [(row.used?.[0] ?? 0) + used[0], (row.used?.[1] ?? 0) + used[1]];
      row.cost += cost;
    }
    return row;
  };
  for (const span of roots) add(span, 1, null);
  const length = rows.reduce((latest, row) => Math.max(latest, row.start + row.length), 0.001);
  return { number, start: begin / 1e6, length, open: !isRun(roots[0]), ticks: ticks(length), rows };
}

/**
 * @param {Span} span @param {number} level @param {string | null} parent @param {number} children
 * @param {number} begin
 */
function rowOf(span, level, parent, children, begin) {
  const { name, attributes: all, error } = span;
  const [input, output] = [all["gen_ai.usage.input_tokens"], all["gen_ai.usage.output_tokens"] ?? 0];
  const outcome = all["agentsd.tool.outcome"];
  const waits = name === "plan.approval" || outcome === "waiting";
  const kind = KINDS.find(([pattern]) => pattern.test(name))?.[1] ?? "agent";
  const refused = outcome === "rejected" || outcome === "answered" ? outcome : "";
  const named = NAMED.exec(name)?.[2];
  return {
    key: span.span_id,
    ...{ level, parent, children, span },
    kind: waits ? "human" : kind,
    label: named ?? labelOf(name, all),
    code: named !== undefined,
    start: Math.max(0, (span.start_ns - begin) / 1e6),
    length: Math.max(0, (span.end_ns - span.start_ns) / 1e6),
    used: input === undefined ? null : [input, output],
    cost: all["agentsd.model.cost_usd"] ?? 0,
    word: children ? "" : (error ?? (waits ? "waits" : refused)),
    failed: error !== null,
  };
}

/** @param {string} name @param {Record<string, any>} all */
function labelOf(name, all) {
  const revision = all["agentsd.plan.revision"];
  if (name === "agent.route") return `route › ${all["agentsd.route.agent"] ?? ""}`;
  if (name.startsWith("plan ") && revision) return `plan, revision ${revision}`;
  return name.replace(/^agent\.step /, "step ").replace(/^invoke_workflow /, "run › ");
}

/** @param {number} length @returns {number[]} at most six round numbers from 0 to less than it */
export function ticks(length) {
  const least = (length / 5) * 0.999999;
  const power = 10 ** Math.floor(Math.log10(least));
  const step = (least > 5 * power ? 10 : least > 2 * power ? 5 : least > power ? 2 : 1) * power;
  return [0, 1, 2, 3, 4, 5].map((i) => i * step).filter((at) => at < length * 0.999999);
}

/** @param {readonly Row[]} rows @param {ReadonlySet<string>} folded keys of rows whose children are not shown */
export function unfolded(rows, folded) {
  const hidden = new Set(folded);
  return rows.filter(({ key, parent }) => {
    if (parent === null || !hidden.has(parent)) return true;
    hidden.add(key);
    return false;
  });
}

/**
 * Return spans for a run without stored ones: the times of its tool calls are known.
 * @param {readonly import("../types.d.ts").TraceEntry[]} trace
 * @returns {Span[]}
 */
export function spansOfCalls(trace) {
  return trace.flatMap(({ action, agent, call_id: id, elapsed_ms: ms, timestamp, error }, i) => {
    if (action.type !== "tool") return [];
    const end = Date.parse(timestamp) * 1e6;
    const attributes = { "gen_ai.tool.call.id": id, "gen_ai.agent.name": agent };
    const ids = { name: `execute_tool ${action.tool}`, span_id: `call ${i}`, parent_id: null };
    const failed = error === null ? null : "tool_error";
    return [{ ...ids, start_ns: end - ms * 1e6, end_ns: end, attributes, error: failed, events: [] }];
  });
}
