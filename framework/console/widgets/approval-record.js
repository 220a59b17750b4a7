/** What is stored about a confirmation: whether it is open, and who decided what. */

import { address, ApiError, apiPath, open } from "../core/api.js";
import { isNumber, parseExact } from "../core/exact-json.js";
import { ago } from "../core/format.js";
import { t, tn } from "../core/i18n.js";
import { may } from "../core/live.js";
import { follow } from "../core/stream.js";
import { argumentText } from "./json.js";

/** The decision that is recorded when a confirmation expires; nobody made it. */
const EXPIRED = "no decision was made in time";

/** @typedef {import("../types.d.ts").Confirmation} Confirmation */
/** @typedef {import("../types.d.ts").MadeDecision} MadeDecision */
/**
 * @typedef {object} PausedRun what the card needs of a run
 * @property {string} status
 * @property {number | null} seq number of the last event; null if its events cannot be followed
 * @property {string | null} paused_at
 * @property {string | null} [user]
 * @property {Confirmation[]} pending
 * @property {MadeDecision[]} decisions
 */

/**
 * Read a run. Numbers keep their text.
 * @param {string} runId
 * @param {AbortSignal} signal
 * @returns {Promise<PausedRun>}
 * @throws {ApiError}
 */
export async function readRun(runId, signal) {
  if (may("read") || may("chat")) return read(apiPath`/runs/${runId}`, {}, signal);
  const { approvals } = await read("/approvals", { limit: 100 }, signal); // all that a key with `decide` alone may read
  const found = approvals.find((/** @type {any} */ run) => run.run_id === runId);
  return { status: "paused", seq: null, decisions: [], pending: [], paused_at: null, ...found };
}

/** @param {string} path @param {Record<string, number>} query @param {AbortSignal} signal @returns {Promise<any>} */
async function read(path, query, signal) {
  const response = await open(address(path, query), { headers: { accept: "application/json" }, signal });
  const text = await response.text();
  if (response.ok) return parseExact(text);
  throw new ApiError(response.status, parseExact(text || "{}").error ?? {});
}

/** @type {Map<string, {listeners: Set<() => void>, stop: AbortController}>} */
const followed = new Map();

/**
 * Call a function when something happens in a run. All cards of a run share a stream: browsers allow few.
 * @param {string} runId
 * @param {number} after
 * @param {() => void} listener
 * @param {AbortSignal} signal
 */
export function followRun(runId, after, listener, signal) {
  const entry = followed.get(runId) ?? { listeners: new Set(), stop: new AbortController() };
  entry.listeners.add(listener);
  signal.addEventListener("abort", () => {
    entry.listeners.delete(listener);
    if (entry.listeners.size) return;
    entry.stop.abort();
    followed.delete(runId);
  }, { once: true });
  if (followed.has(runId)) return;
  followed.set(runId, entry);
  const onEvent = () => entry.listeners.forEach((call) => call());
  const path = apiPath`/runs/${runId}/events`;
  // A key may decide without reading events.
  follow(path, { after, query: { wait: true }, signal: entry.stop.signal, onEvent }).catch(() => {});
}

/** @param {Pick<MadeDecision, "by" | "decision">} made */
export const isExpired = ({ by, decision }) => !by && decision.type === "reject" && decision.reason === EXPIRED;

/**
 * Say what was decided: "approved by ben, 2 s ago, with 1 change".
 * @param {Pick<MadeDecision, "by" | "decision" | "at">} made
 * @param {Confirmation | null} asked
 * @returns {{icon: string, kind: string, text: string}}
 */
export function decidedText(made, asked) {
  const { decision, by } = made;
  const values = { by: by ?? t("somebody"), time: ago(made.at) };
  if (isExpired(made)) return { icon: "clock", kind: "none", text: t("expired {time}, so it was rejected", values) };
  if (decision.type === "reject") {
    const text = t("rejected by {by}, {time}", values);
    return { icon: "x", kind: "danger", text: decision.reason ? `${text}: “${decision.reason}”` : text };
  }
  if (decision.type === "respond") {
    const text = t("answered by {by}, {time}", values);
    const said = decision.values ? argumentText(decision.values) : `“${decision.text}”`;
    return { icon: "reply", kind: "ok", text: `${text}: ${said}` };
  }
  const text = t("approved by {by}, {time}", values);
  if (decision.type === "approve") return { icon: "check", kind: "ok", text };
  const n = countChanges(before(asked), decision.arguments);
  return { icon: "edit", kind: "ok", text: text + tn(n, ", with 1 change", ", with {n} changes") };
}

/**
 * Return what an edit of a confirmation replaces: its arguments or, for a plan, its open steps.
 * @param {Confirmation | null} asked
 * @returns {Record<string, any>}
 */
export function before(asked) {
  if (!asked?.plan) return asked?.arguments ?? {};
  const steps = asked.plan.steps.filter((step) => !["done", "failed"].includes(step.status));
  const drafts = steps.map(({ id, description, tool, parameters, tools, depends_on, expected, ...step }) => {
    const loop = step.for_each ? { for_each: step.for_each, max_items: step.max_items } : {};
    const when = Object.keys(step.when ?? {}).length ? { when: step.when } : {};
    return { id, description, tool, parameters, tools, depends_on, expected, ...when, ...loop };
  });
  return { goal: asked.plan.goal, steps: drafts };
}

/** @param {any} a @param {any} b @returns {number} how many parts of two values differ; steps count by their ids */
export function countChanges(a, b) {
  if (Array.isArray(a?.steps) && Array.isArray(b?.steps)) return countChanges(byId(a.steps), byId(b.steps));
  const names = new Set([...Object.keys(a ?? {}), ...Object.keys(b ?? {})]);
  return [...names].filter((name) => plain(a?.[name]) !== plain(b?.[name])).length;
}

/** @param {{id: string}[]} steps */
const byId = (steps) => Object.fromEntries(steps.map((step) => [step.id, step]));

/** @param {any} value its JSON; 1.0 and 1 are one number here */
const plain = (value) =>
  JSON.stringify(value, (_, inner) => (isNumber(inner) ? Number(JSON.stringify(inner)) : inner)) ?? "";
