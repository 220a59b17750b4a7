/** The approvals of an agent's calls that are remembered: which calls, where, by whom, how long; and how one ends. */

import { apiPath, del, get } from "../core/api.js";
import { now } from "../core/clock.js";
import { failureNote } from "../core/component.js";
import { fill, h } from "../core/dom.js";
import { duration, fullTime, runName, time } from "../core/format.js";
import { t, tParts } from "../core/i18n.js";
import { talkLink } from "../core/live.js";
import { link } from "../core/route.js";
import { ask } from "../widgets/dialog.js";
import { visible } from "../widgets/text.js";
import { toast } from "../widgets/toast.js";

/** @typedef {import("../types.d.ts").GrantEntry} Grant */

/** @param {string} name */
export function grants(name) {
  const rows = h("div.stack");
  const show = () => get("/grants", { agent: name }).then(
    ({ grants: found }) => fill(rows, found.length ? found.map((/** @type {Grant} */ one) => row(one, revoke))
      : h("p.dim", t("No approval is remembered."))),
    (error) => fill(rows, failureNote(error, show)));
  const revoke = async (/** @type {Grant} */ grant) => {
    const body = t("The next call like it is asked about again.");
    if (!(await ask({ title: t("Revoke this approval?"), body, action: t("Revoke"), danger: true }))) return;
    await del(apiPath`/grants/${grant.id}`).catch((error) =>
      toast({ title: error.message, tone: "danger" }));
    await show();
  };
  void show();
  return h("section.stack.grants", h("h2.h15", t("Remembered approvals")), rows);
}

/** @param {Grant} grant @param {(grant: Grant) => void} revoke */
function row(grant, revoke) {
  const run = h("a.lk.mono", { href: link("runs", grant.run_id), title: grant.run_id }, runName(grant.run_id));
  const by = grant.by ? t("approved by {who}", { who: grant.by }) : t("approved by nobody named");
  const facts = [
    where(grant),
    h("span", by, " ", h("time", { title: fullTime(grant.created_at) }, time(grant.created_at)), " ", run),
    h("span", { title: fullTime(grant.last_used_at) }, t("used {n} times", { n: grant.uses }),
      grant.at_most && `, ${t("at most {rate}", { rate: grant.at_most })}`),
    h("time", { title: fullTime(grant.expires_at) },
      t("{time} left", { time: duration(Date.parse(grant.expires_at) - now()) })),
  ];
  const end = h("button.btn.sm", { "aria-label": `${t("Revoke")}: ${grant.covers}`, onclick: () => revoke(grant) },
    t("Revoke"));
  return h("section.card", h("div.in.stack",
    h("div.row", h("div.row.wrap.grow", covers(grant), grant.agent.includes("/") && h("code.dim", grant.agent),
      grant.state === "void" && h("span.tag.k-warn", { title: grant.reason ?? "" }, t("void"))), end),
    h("p.small.dim", facts.flatMap((fact, i) => (i ? [" · ", fact] : [fact]))),
    grant.reason && h("p.small.k-warn", visible(grant.reason))));
}

/** @param {Grant} grant */
function covers({ tool, width, when, arguments: made }) {
  const name = h("code", visible(tool));
  if (width === "tool") return h("span", tParts("Every call of {tool}", { tool: name }));
  const texts = Object.entries(width === "call" ? made : when).flatMap(([key, value]) =>
    (width === "call" || !Array.isArray(value) ? [value] : value).map((one) =>
      `${key} ${typeof one === "string" && width !== "call" ? one : JSON.stringify(one)}`));
  return [name, width === "call" && h("span.dim", t("Exactly this call")),
    texts.map((text) => h("code", visible(text)))];
}

/** @param {Grant} grant */
function where({ scope, scope_id, user }) {
  if (scope === "run") return t("this run");
  if (scope === "user") return user ? t("all runs of {user}", { user }) : t("all runs");
  return h("a.lk", { href: talkLink(scope_id, user), title: scope_id }, t("one conversation"));
}
