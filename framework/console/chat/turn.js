/** One turn of a conversation: the message, and what the run did with it. */

import { fill, h, keyed } from "../core/dom.js";
import { duration } from "../core/format.js";
import { t, tParts } from "../core/i18n.js";
import { icon } from "../core/icons.js";
import { may } from "../core/live.js";
import { link } from "../core/route.js";
import { copyButton, copyText, urlOf } from "../widgets/copy.js";
import { showMarkdown } from "../widgets/markdown.js";
import { menu } from "../widgets/menu.js";
import { withPlaces } from "../widgets/place.js";
import { planCard, showPlan } from "../widgets/plan-card.js";
import { ratingButtons } from "../widgets/rating.js";
import { visible } from "../widgets/text.js";
import { ToolCard } from "../widgets/tool-card.js";

/** @typedef {import("../types.d.ts").RunItem} RunItem */
/** @typedef {import("./conversation.js").Turn} Turn */
/** @typedef {{key: string, kind: string, items: RunItem[]}} Group calls that follow each other share a frame */
/** What a reader does with a turn. @typedef {{onRetry: (turn: Turn) => void, onDrop: (turn: Turn) => void,
 *   onEdit: (turn: Turn) => void, onFork: (turn: Turn) => void,
 *   onRated: (turn: Turn, rating: import("../types.d.ts").Rating | null) => void,
 *   address: (turn: Turn) => string}} Acts */
/** @typedef {Acts & {last: boolean, forked: boolean}} Options forked: it is the last turn that was copied */

/** Calls of a turn that are drawn until the reader asks for all. */
const MOST_CALLS = 100;
/** @type {Record<string, string>} status of a call for that of a step */
const STEPS = { done: "success", failed: "error", skipped: "cancelled" };

/** Return the element of a turn; `showTurn` fills it. */
export function turnElement() {
  return h("article.turn", h("p.me"), h("div.who"), h("div.items"), h("div.end"), h("div.acts"));
}

/**
 * Show the present state of a turn.
 * @param {HTMLElement} element
 * @param {Turn} turn
 * @param {Options} options
 */
export function showTurn(element, turn, options) {
  const [me, who, items, end, acts] = /** @type {HTMLElement[]} */ ([...element.children]);
  const { model } = turn;
  const message = model.message || turn.message;
  element.dataset.run = model.runId;
  if (me.dataset.text !== message) fill(me, visible(message));
  me.dataset.text = message;
  me.classList.toggle("sending", turn.sending !== "");
  changed(who, [model.agent, model.reason, model.executor, model.generation], () => whoLine(turn));
  const asked = model.pending.some(({ kind }) => kind === "plan"); // the question shows the plan
  const shown = asked ? model.items.filter(({ kind }) => kind !== "plan") : model.items;
  const groups = grouped(shown, model.plan);
  const create = (/** @type {Group} */ group) => groupElement(group.kind, group.items[0]);
  keyed(items, groups, ({ key }) => key, create, (node, group) => showGroup(node, group, turn));
  const errors = [turn.error?.message, model.error?.message];
  const state = [turn.sending, ...errors, model.status, model.finishReason, options.last, options.forked];
  changed(end, state, () => [endLine(turn, options), options.forked && forkLine(model.copiedFrom)]);
  const { runId, rating, open } = model;
  changed(acts, [turn.sending, runId, rating, open, answerOf(turn) !== ""], () => actions(turn, options));
}

/** @param {string | null} origin the run that the last copied turn is a copy of */
function forkLine(origin) {
  return remark("route", tParts("The conversation was forked here, after {run}.", {
    run: h("a.lk", { href: link("runs", origin ?? "") }, t("this run")),
  }));
}

/** @param {Turn} turn its answer as Markdown */
function answerOf({ model }) {
  const texts = model.items.filter(({ kind }) => kind === "text").map(({ text }) => text ?? "");
  return texts.join("\n\n");
}

/** @param {Turn} turn @param {Options} options what can be done with a turn that is stored */
function actions(turn, { onEdit, onFork, onRated, address }) {
  const { model, sending } = turn;
  if (!model.runId || sending) return null;
  const answer = answerOf(turn);
  const rated = { runId: model.runId, rating: model.rating, onChange: (/** @type {any} */ to) => onRated(turn, to) };
  const button = (/** @type {string} */ mark, /** @type {string} */ label, /** @type {() => void} */ onclick) =>
    h("button.ib", { title: label, "aria-label": label, onclick }, icon(mark));
  const more = h("button.ib", { "aria-label": t("More about this answer") }, icon("more"));
  const whole = () => `> ${(model.message || turn.message).replaceAll("\n", "\n> ")}\n\n${answerOf(turn)}`;
  menu(more, () => [
    { label: t("Copy the answer as text"), icon: "copy", run: () => void copyText(plain(turn)) },
    { label: t("Copy question and answer"), icon: "copy", run: () => void copyText(whole()) },
    { label: t("Open run"), icon: "runs", href: link("runs", model.runId) },
    { label: t("Compare with another run"), icon: "compare", href: link("runs", { compare: model.runId }) },
  ]);
  const writes = may("chat") && may("read");
  return [
    answer && copyButton(() => answerOf(turn), t("Copy the answer as Markdown")),
    copyButton(() => urlOf(address(turn)), t("Copy a link to this message"), "chain"),
    (answer || model.rating) && !model.open && may("chat") && ratingButtons(rated),
    writes && button("edit", t("Edit this message"), () => onEdit(turn)),
    writes && ["completed", "stopped"].includes(model.status) &&
      button("route", t("Continue from here in a new conversation"), () => onFork(turn)),
    may("read") && more,
  ];
}

/** @param {Turn} turn its answer as it is read, without the marks of Markdown */
function plain({ model }) {
  const shown = document.querySelectorAll(`.turn[data-run="${CSS.escape(model.runId)}"] .items > .prose`);
  return [...shown].map((node) => /** @type {HTMLElement} */ (node).innerText.trim()).join("\n\n");
}

/** @param {HTMLElement} element @param {unknown[]} state @param {() => any} content fill it if its state changed */
function changed(element, state, content) {
  const text = JSON.stringify(state);
  if (element.dataset.state === text) return;
  element.dataset.state = text;
  fill(element, content());
}

/** @param {Turn} turn */
function whoLine({ model }) {
  if (!model.agent) return null;
  const about = [model.reason && t("chosen: {reason}", { reason: model.reason }), model.executor];
  const words = [...about, `g${model.generation}`].filter(Boolean).join(" · ");
  return [h("span.avatar.k-model", icon("agents", { size: 14 })), h("b", model.agent), h("span.cut", visible(words))];
}

/** @param {RunItem[]} items @param {RunItem | null} plan @returns {Group[]} */
function grouped(items, plan) {
  /** @type {Group[]} */
  const found = [];
  for (const item of items) {
    const kind = item.kind === "sub" ? "call" : item.kind;
    const last = found.at(-1);
    if (kind === "call" && last?.kind === "call") last.items.push(asCall(item, plan));
    else found.push({ key: item.key, kind, items: [kind === "call" ? asCall(item, plan) : item] });
  }
  return found;
}

/** @param {RunItem} item @param {RunItem | null} plan a step without a tool, shown like a call */
function asCall(item, plan) {
  if (item.kind === "call") return item;
  const step = plan?.steps?.findLast((each) => each.id === item.id);
  const status = STEPS[step?.status ?? ""] ?? "running";
  const about = { goal: step?.description ?? "" };
  return { ...item, tool: t("step {id}", { id: item.id }), status, arguments: about, error: step?.result ?? undefined };
}

/** @param {string} kind @param {RunItem} item @returns {HTMLElement} */
function groupElement(kind, item) {
  if (kind === "call") return h("div.calls", h("button.lk.earlier", { hidden: true }), h("div"));
  if (kind === "plan") return planCard();
  if (kind === "thought") return thought();
  if (kind === "text") return h("div.prose");
  if (kind === "ask") return h("approval-card");
  return remark("alert", h("span", withPlaces(item.message ?? ""), h("code.dim", ` ${item.code}`)), "k-warn");
}

/** @param {any} node @param {Group} group @param {Turn} turn */
function showGroup(node, { kind, items }, turn) {
  const { model } = turn;
  const [item] = items;
  const isLive = turn.since > 0 && model.open;
  if (kind === "call") {
    const select = (/** @type {ToolCard} */ card, /** @type {RunItem} */ call) => {
      card.dataset.key = call.key;
      card.show(call, isLive);
    };
    const [earlier, frame] = node.children;
    const more = node.dataset.all ? 0 : Math.max(0, items.length - MOST_CALLS);
    earlier.hidden = !more;
    earlier.textContent = t("show {n} earlier calls", { n: more });
    earlier.onclick = () => ((node.dataset.all = "yes"), showGroup(node, { key: item.key, kind, items }, turn));
    keyed(frame, items.slice(more), ({ key }) => key, () => new ToolCard(), select);
  } else if (kind === "plan") showPlan(node, item, model.items);
  else if (kind === "thought") showThought(node, item);
  else if (kind === "text") showText(node, item);
  else if (kind === "ask") void showQuestion(node, { runId: model.runId, confirmation: item.confirmation });
}

/** @param {HTMLElement} node @param {RunItem} item */
function showText(node, item) {
  if (node.dataset.text !== `${item.seq} ${item.text?.length}`) showMarkdown(node, item.text ?? "");
  node.dataset.text = `${item.seq} ${item.text?.length}`;
  node.classList.toggle("live", !item.seq);
}

/** @param {any} card @param {{runId: string, confirmation: any}} subject its module is loaded after the page */
async function showQuestion(card, subject) {
  await customElements.whenDefined("approval-card");
  card.show(subject);
}

function thought() {
  const node = h("details", { class: "fold" }, h("summary"), h("div.think", { tabindex: 0 }));
  node.dataset.began = String(Date.now());
  node.firstElementChild?.addEventListener("click", () => (node.dataset.kept = "yes"));
  return node;
}

/** @param {HTMLDetailsElement} node @param {RunItem} item open while it comes, unless the reader folded it */
function showThought(node, item) {
  const [summary, body] = /** @type {HTMLElement[]} */ ([...node.children]);
  const text = item.text ?? "";
  const known = Number(body.dataset.size ?? 0);
  if (known > text.length || !known) fill(body, visible(text));
  else if (known < text.length) body.append(visible(text.slice(known)));
  body.dataset.size = String(text.length);
  const live = !item.seq;
  if (live) node.dataset.live = "yes";
  const spent = Date.now() - Number(node.dataset.began);
  const time = duration(Math.round(spent / 100) * 100);
  const label = live ? t("Thinking") : node.dataset.live ? t("Thought for {time}", { time }) : t("Thought");
  if (live || summary.dataset.live !== "no") fill(summary, icon("right", { size: 14 }), label, live && h("i.spin"));
  summary.dataset.live = live ? "yes" : "no";
  if (!node.dataset.kept) node.open = live;
  if (live) body.scrollTop = body.scrollHeight;
}

/** @param {Turn} turn @param {Options} options what became of it, and what to do */
function endLine(turn, { onRetry, onDrop, last }) {
  const { model, sending, error } = turn;
  const again = () => h("button.btn.sm", { onclick: () => onRetry(turn) }, t("Send again"));
  const drop = () => h("button.btn.sm.ghost", { onclick: () => onDrop(turn) }, t("Edit"));
  const later = t("It is sent once the server responds.");
  if (sending === "waiting") return note("warn", "clock", t("Not sent yet."), later);
  if (sending === "failed") return note("danger", "alert", t("Not sent."), error?.message ?? "", again(), drop());
  if (sending) return h("p.notice", h("i.spin"), t("Sending"));
  if (error) return note("danger", "alert", t("The events could not be loaded."), error.message);
  if (model.status === "queued") return remark("clock", t("Waits for the runs before it."));
  if (model.status === "cancelled") return remark("stop", [t("Stopped by a person."), " ", last && again()]);
  if (model.status === "stopped") {
    return note("warn", "stop", t("Stopped by a limit."), h("code", model.finishReason), last && again());
  }
  if (model.status !== "failed") return null;
  const { code = model.finishReason, message = "" } = model.error ?? {};
  const why = [withPlaces(message), " ", h("code.dim", code)];
  return note("danger", "alert", t("The run failed."), why, last && again());
}

/** @param {string} name @param {any} content @param {string} [kind] */
function remark(name, content, kind = "k-none") {
  return h("p.notice", { class: kind }, icon(name, { size: 14 }), content);
}

/** @param {string} kind @param {string} name @param {string} title @param {any} text @param {any[]} actions */
function note(kind, name, title, text, ...actions) {
  return h(`div.note.k-${kind}`, icon(name), h("div", h("b", title), " ", text), h("div.do", actions));
}
