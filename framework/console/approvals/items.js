/** Entries of the inbox. */

import { now } from "../core/clock.js";
import { fill, h } from "../core/dom.js";
import { fullTime, time, timeLeft } from "../core/format.js";
import { t, tn } from "../core/i18n.js";
import { icon } from "../core/icons.js";
import { approvals } from "../core/live.js";
import { decidedText } from "../widgets/approval-record.js";
import { ring, riskTag, waits } from "../widgets/approval-view.js";
import { argumentText } from "../widgets/json.js";
import { visible } from "../widgets/text.js";

/** @typedef {import("../types.d.ts").Confirmation} Confirmation */
/** @typedef {import("../types.d.ts").DecidedConfirmation} Decided */
/** @typedef {import("../types.d.ts").PendingRun} PendingRun */
/** @typedef {{run: PendingRun | Decided, asked?: Confirmation | null, made?: Decided}} Item */

/** @returns {Item[]} the confirmations of all runs, those that expire first first */
export function waitingItems() {
  const items = approvals.value.items.flatMap((run) => run.pending.map((asked) => ({ run, asked })));
  const end = (/** @type {{asked: Confirmation}} */ { asked }) => Date.parse(asked.expires_at ?? "") || Infinity;
  return items.sort((a, b) => (end(a) === end(b) ? 0 : end(a) - end(b)));
}

/** @param {Item} item @returns {[string, string]} run and confirmation */
export function keyOf({ run, asked, made }) {
  return [run.run_id, asked?.id ?? made?.confirmation?.id ?? made?.at ?? ""];
}

/** @param {Confirmation | null | undefined} asked */
function nameOf(asked) {
  const steps = asked?.plan?.steps.length ?? 0;
  if (asked?.kind === "plan") return h("b.cut.say", tn(steps, "a plan of 1 step", "a plan of {n} steps"));
  if (asked?.kind === "step") return h("b.cut.say", t("a failed step"));
  if (asked?.kind === "login" || asked?.kind === "client_tool")
    return h("b.cut", waits(asked.kind, asked.tool, visible(asked.tool)));
  if (asked?.kind === "ask_user") return h("b.cut.say", t("a question"));
  return h("b.cut", visible(asked?.tool || "–"));
}

/** @param {Confirmation | null | undefined} asked */
export function aboutText(asked) {
  if (!asked) return "";
  if (asked.kind === "plan") return asked.plan?.goal ?? "";
  return asked.kind === "tool" ? argumentText(asked.arguments) : asked.reason;
}

/** @param {HTMLElement} node @param {Item} item */
export function drawWaiting(node, { run, asked }) {
  if (!asked) return;
  const { kind, expires_at } = asked;
  const paused = /** @type {PendingRun} */ (run).paused_at;
  const drawn = JSON.stringify([run.run_id, asked.id, asked.hash]);
  if (node.dataset.drawn !== drawn) {
    node.dataset.drawn = drawn;
    node.classList.add("k-human");
    const facts = [asked.agent || run.agent, run.user && t("for {user}", { user: run.user }), time(paused)];
    const small = h("small", h("span.cut", facts.filter(Boolean).join(" · ")));
    const tag = riskTag(asked);
    if (tag) small.append(tag);
    const mark = icon(kind === "tool" ? "tool" : kind === "plan" ? "plan" : "human");
    fill(node, mark, nameOf(asked), h("span.left"), h("p.about", visible(aboutText(asked))), small);
  }
  const left = /** @type {HTMLElement} */ (node.querySelector(".left"));
  if (!expires_at) return;
  const rest = Date.parse(expires_at) - now();
  const whole = Date.parse(expires_at) - (Date.parse(paused ?? "") || now());
  left.title = fullTime(expires_at);
  fill(left, ring(rest, whole), rest > 0 ? timeLeft(rest) : t("expired"));
}

/** @param {HTMLElement} node @param {Decided} made */
export function drawDecided(node, made) {
  const { icon: mark, kind, text } = decidedText(madeOf(made), made.confirmation);
  node.className = `item k-${kind}`;
  const about = h("small", h("span.cut", [made.agent, aboutText(made.confirmation)].filter(Boolean).join(" · ")));
  const when = h("time", { title: fullTime(made.at) }, time(made.at));
  fill(node, icon(mark), nameOf(made.confirmation), when, h("p", visible(text)), about);
}

/** @param {Decided} made @returns {import("../types.d.ts").MadeDecision} */
export const madeOf = (made) => ({ ...made, confirmation_id: made.confirmation?.id ?? "" });
