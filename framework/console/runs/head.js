/** The head of a run: its status and title, its figures, and what went wrong with what to do. */

import { apiPath, get, post } from "../core/api.js";
import { now } from "../core/clock.js";
import { h } from "../core/dom.js";
import { cost, digest, duration, fullTime, runName, time, tokens } from "../core/format.js";
import { t, tParts } from "../core/i18n.js";
import { icon } from "../core/icons.js";
import { identity, live, may, talkLink } from "../core/live.js";
import { go, link } from "../core/route.js";
import { copyButton, copyText, urlOf } from "../widgets/copy.js";
import { ask } from "../widgets/dialog.js";
import { markdown } from "../widgets/markdown.js";
import { menu } from "../widgets/menu.js";
import { place } from "../widgets/place.js";
import { ratingButtons } from "../widgets/rating.js";
import { isOpen, runStatus } from "../widgets/status.js";
import { visible } from "../widgets/text.js";
import { toast } from "../widgets/toast.js";
import { exportCase, replay } from "./tabs.js";

/** @typedef {import("../types.d.ts").RunDetail} Run */

/** @param {Run} run */
export function header(run) {
  const title = titleOf(run) || runName(run.run_id);
  const about = h("p.small.dim.run-facts", runStatus(run), facts(run));
  return h("div.row.wrap.run-head", h("div.grow", h("h2.h18", visible(title)), about), actions(run));
}

/** @param {Run} run */
const questionOf = ({ messages, earlier_messages: n }) => messages[n]?.content.trim() ?? "";

/** @param {Run} run */
const titleOf = (run) => questionOf(run).split("\n", 1)[0].slice(0, 200);

/**
 * Return the question, unless the title is all of it, the answer, and its rating.
 * @param {Run} run @param {(rating: import("../types.d.ts").Rating | null) => void} onChange
 */
export function talk(run, onChange) {
  const [question, answer] = [questionOf(run), run.output];
  const row = (/** @type {string} */ name, /** @type {any} */ text) => [h("dt", name), h("dd", { tabindex: 0 }, text)];
  const rows = [
    question === titleOf(run) ? null : row(t("Question"), visible(question)),
    answer ? row(t("Answer"), h("div.prose", markdown(answer))) : null,
    answer || run.rating ? row(t("Rating"), rating(run, onChange)) : null,
  ].filter((each) => each !== null);
  return rows.length ? h("dl.card.run-talk", rows) : null;
}

/** @param {Run} run @param {(rating: import("../types.d.ts").Rating | null) => void} onChange */
function rating({ run_id: runId, rating: given }, onChange) {
  const word = given && (given.value === "up" ? t("Good answer") : t("Bad answer"));
  const by = given?.by && t("by {name}", { name: given.by });
  const about = given ? [word, by, time(given.at)].filter(Boolean).join(" · ") : t("not rated");
  const buttons = may("chat") ? ratingButtons({ runId, rating: given, onChange }) : null;
  return h("div.row.wrap", buttons, h("span.dim", about), given?.comment && h("span", visible(given.comment)));
}

/** @param {Run} run what was asked and answered, and the calls between, as Markdown */
function asMarkdown(run) {
  const calls = run.trace.filter(({ action }) => action.type === "tool").map(({ action }) => action.tool);
  const about = [run.agent, run.status, tokens(run.usage.total_tokens), cost(run.usage.cost_usd)].join(" · ");
  const used = calls.length ? `${t("Calls")}: ${calls.join(", ")}` : "";
  const question = `> ${questionOf(run).replaceAll("\n", "\n> ")}`;
  return [question, run.output, used, `${about} · ${run.run_id}`].filter(Boolean).join("\n\n");
}

/** @param {Run} run @returns {(import("../widgets/menu.js").MenuItem)[]} */
function moreItems(run) {
  const { run_id: id, conversation_id: conversation } = run;
  const items = [
    { label: t("Copy question and answer"), icon: "copy", run: () => void copyText(asMarkdown(run)) },
    conversation && { label: t("Compare with the turn before"), icon: "compare", run: () => void withBefore(run) },
    { label: t("Compare with another run"), icon: "compare", href: link("runs", { compare: id }) },
    !identity.value?.agents && { label: t("Compare with a replay"), icon: "refresh", run: () => replay(id) },
  ];
  return /** @type {any[]} */ (items.filter(Boolean));
}

/** @param {Run} run compare it with the run before it in its conversation */
async function withBefore({ run_id: id, conversation_id, user }) {
  const query = { conversation_id, user, before: id, limit: 1 };
  const found = await get("/runs", query).catch((error) => (toast({ title: error.message, tone: "danger" }), null));
  if (found?.runs.length) go(link("compare", found.runs[0].run_id, id));
  else if (found) toast({ title: t("It is the first turn of its conversation.") });
}

/** @param {Run} run */
function facts(run) {
  const { run_id: id, agent, generation, executor, conversation_id: conversation, trace_id: trace } = run;
  const files = h("a.lk", { href: link("runs", id, { tab: "files" }), title: run.digest }, `g${generation}`);
  const found = [
    [h("code", { title: id }, runName(id)), copyButton(id, t("Copy the run's id"))],
    agent && h("a.lk", { href: link("agents", agent) }, agent),
    executor && t("by {executor}", { executor }),
    generation ? [files, " ", h("span.hash", digest(run.digest))] : null,
    run.user && t("for {user}", { user: run.user }),
    conversation && h("a.lk", { href: talkLink(conversation, run.user) }, t("conversation")),
    trace && [
      t("trace"),
      " ",
      h("span.hash", { title: trace }, digest(trace)),
      copyButton(trace, t("Copy the trace's id")),
    ],
  ];
  return found.filter(Boolean).map((item) => h("span", "· ", item));
}

/** @param {Run} run */
function actions(run) {
  const { run_id: id, status } = run;
  const begun = status !== "queued" && may("read");
  const generation = live.value?.generation ?? "";
  const more = h("button.ib", { "aria-label": t("More") }, icon("more"));
  menu(more, () => moreItems(run));
  /** @param {any} shown @param {string} mark @param {string} label @param {() => unknown} onclick */
  const button = (shown, mark, label, onclick) =>
    shown ? h("button.btn.sm", { onclick }, icon(mark, { size: 14 }), label) : null;
  return [
    button(begun && !identity.value?.agents, "refresh", t("Replay under g{n}", { n: generation }), () => replay(id)),
    button(begun, "flask", t("As a test case"), () => exportCase(id)),
    copyButton(() => urlOf(link("runs", id)), t("Copy a link to this run"), "chain"),
    may("read") && more,
    button(isOpen(run) && may("chat"), "stop", t("Cancel the run"), () => cancel(id)),
  ];
}

/** @param {string} id */
async function cancel(id) {
  const body = t("Calls in progress may have taken effect.");
  if (!(await ask({ title: t("Cancel this run?"), body, action: t("Cancel the run"), danger: true }))) return;
  await post(apiPath`/runs/${id}/cancel`).catch((error) => toast({ title: error.message, tone: "danger" }));
}

/** @param {Run} run */
export function figures(run) {
  const { usage, limits, created_at: began, status } = run;
  const whole = (isOpen(run) ? now() : Date.parse(run.updated_at)) - Date.parse(began);
  const active = status === "running" && !run.decisions.length ? whole : run.elapsed_ms;
  const pause = run.decisions.length || status === "paused" ? whole - active : 0;
  const most = limits.max_steps ? h("small", ` / ${limits.max_steps}`) : null;
  const unknown = usage.cost_usd !== null ? null : t("No price is known for the model");
  /** @type {[string, any][]} */
  const rows = [
    [t("Began"), h("time", { datetime: began, title: fullTime(began) }, time(began))],
    [t("Active"), status === "queued" ? "–" : duration(active)],
    [t("Waited"), pause > 0 ? duration(pause) : "–"],
    [t("Steps"), [run.steps, most]],
    [t("Tokens"), [tokens(usage.total_tokens), h("small", " ", t("in {n}", { n: tokens(usage.prompt_tokens) }))]],
    [t("Cost"), h("span", { title: unknown }, cost(usage.cost_usd))],
  ];
  return h(
    "dl.figs",
    rows.map(([name, value]) => h("div", h("dt", name), h("dd", value))),
  );
}

/**
 * Return what the reader should know, and what to do.
 * @param {Run} run @param {any[]} events
 */
export function banners(run, events) {
  const { error, stopped_by: stop, pending, status } = run;
  const ended = new Set(events.filter((each) => each.event === "tool_result").map((each) => each.id));
  const begun = events.filter((each) => each.event === "tool_call" && each.status === "running" && !ended.has(each.id));
  const calls = [...new Set(begun.map((each) => each.tool))];
  const names = pending.map(({ tool, kind }) => tool || kind).join(", ");
  const open = may("decide") ? h("a.btn.sm", { href: link("approvals", run.run_id) }, t("Open approval")) : null;
  const resume = { command: h("code", "agentsd runs resume") };
  const queue = t("It begins after the earlier runs of its conversation.");
  const undone = status === "completed" && run.incomplete.length > 0;
  const warnings = run.warnings.filter(({ code }) => code !== "steps_not_done");
  const orphan = tParts("The server resumes it by itself. In a terminal: {command}", resume);
  return [
    run.orphaned && note("warn", t("Its process ended before the run did."), orphan),
    status === "running" && calls.length && note("accent", t("In progress:"), h("code", calls.join(", "))),
    status === "queued" && note("info", t("The run waits in the queue."), queue),
    error && note("danger", h("code", error.code), [`${error.message}. `, advice(error)]),
    stop && note("warn", h("code", stop.limit), stopText(stop)),
    pending.length && note("human", t("Waits for a decision: {names}", { names }), null, open),
    run.truncated && note("warn", t("The answer is incomplete."), t("The output limit max_tokens cut it.")),
    undone && note("warn", t("Steps of the plan were not done:"), notDone(run.incomplete)),
    warnings.slice(0, 3).map(({ code, message }) => note("warn", h("code", code), message)),
  ].map((each) => each || null);
}

/** @param {Run["incomplete"]} steps */
const notDone = (steps) => steps.map(({ id, description, reason }) => `${id} ${description}: ${reason}`).join("; ");

/** @param {NonNullable<Run["error"]>} error */
function advice({ code, retryable }) {
  if (retryable) return t("The same message may succeed later.");
  return code === "model_error" ? "" : t("The last steps show where it happened."); // its message says what to do
}

/** @param {NonNullable<Run["stopped_by"]>} stop */
function stopText({ used, allowed, place: where }) {
  const numbers = { used: String(Math.round(used * 1e4) / 1e4), allowed: String(allowed) };
  return tParts("The limit was reached: {used} of {allowed}. It is set at {place}.", {
    ...numbers,
    place: place(where),
  });
}

/** @param {string} kind @param {any} title @param {any} text @param {Node | null} [action] */
function note(kind, title, text, action = null) {
  const mark = kind === "accent" ? h("i.spin") : icon(kind === "human" || kind === "info" ? kind : "alert");
  return h(`div.note.k-${kind}`, mark, h("div.grow", h("b", title), " ", text), action && h("div.do", action));
}
