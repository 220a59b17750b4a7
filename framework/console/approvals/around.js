/** What stands around the card: what was said before, and what each decision leads to. */

import { apiPath, get } from "../core/api.js";
import { fill, h } from "../core/dom.js";
import { fullTime } from "../core/format.js";
import { t } from "../core/i18n.js";
import { icon } from "../core/icons.js";
import { may, talkLink } from "../core/live.js";
import { link } from "../core/route.js";
import { visible } from "../widgets/text.js";

const LAST = 4;
const LONGEST = 1200;

/**
 * Fill a card with the last messages of a run. It stays hidden for a key that may not read runs.
 * @param {HTMLElement} card
 * @param {{run_id: string, conversation_id: string | null, user: string | null}} run
 */
export async function saidCard(card, run) {
  card.hidden = true;
  if (!may("read") && !may("chat")) return;
  const detail = await get(apiPath`/runs/${run.run_id}`).catch(() => null);
  /** @type {{role: string, content: string}[]} */
  const said = (detail?.messages ?? []).filter((/** @type {any} */ one) => one.content && one.role !== "tool");
  if (!said.length) return;
  const { conversation_id: id, user } = run;
  const href = id ? talkLink(id, user) : link("runs", run.run_id, { tab: "messages" });
  const more = h("a.small.lk", { href }, t("All messages"));
  const rows = said.slice(-LAST).map((one) => message(one, run.user));
  fill(card, h("header", h("h2", t("What was said")), h("span.grow"), more), h("div.in.stack", rows));
  card.hidden = false;
}

/** @param {{role: string, content: string}} message @param {string | null} user */
function message({ role, content }, user) {
  const text = content.length > LONGEST ? `${content.slice(0, LONGEST)} …` : content;
  const agent = role === "assistant";
  const name = agent ? icon("agents", { size: 14 }) : (user ?? "?").slice(0, 2);
  const who = h(`span.avatar.k-${agent ? "model" : "accent"}`, name);
  return h("div.said", who, h("p", visible(text)));
}

/** @param {import("../types.d.ts").Confirmation} asked */
export function thenCard(asked) {
  const { kind, expires_at, on_expiry } = asked;
  const cancels = on_expiry === "cancel";
  const rows = [
    ...(kind === "tool" ? CALL() : kind === "plan" ? PLAN(asked.plan?.source) : kind === "step" ? []
      : asked.url ? VISIT() : QUESTION()),
    [t("Nothing"), expires_at ? expiry(expires_at, cancels) : t("it waits without a limit")],
  ];
  const facts = rows.map(([name, text]) => [h("dt", name), h("dd", text)]);
  return h("section.card", h("header", h("h2", t("What happens then"))), h("div.in", h("dl.facts", facts)));
}

/** @param {string} at @param {boolean} cancels */
function expiry(at, cancels) {
  const time = fullTime(at);
  return cancels ? t("the run is cancelled at {time}", { time }) : t("it is rejected at {time}", { time });
}

const CALL = () => [
  [t("Approve"), t("this call is made, with exactly these arguments")],
  [t("Respond"), t("the model reads your text instead of a result")],
  [t("Reject"), t("the model reads your reason, and continues")],
];
/** @param {string} [source] the place of a plan that the model cannot replace */
const PLAN = (source) => [
  [t("Approve"), t("these steps run")],
  ...(source ? [] : [[t("Respond"), t("the model makes another plan")]]),
  [t("Reject"), t("no step runs")],
];
const VISIT = () => [
  [t("Continue"), t("the call is made again")],
  [t("Reject"), t("the model reads your reason, and continues")],
];
const QUESTION = () => [[t("Answer"), t("the run continues")]];
