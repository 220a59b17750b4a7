/** Parts of the card of a confirmation. */

import { apiPath, post } from "../core/api.js";
import { fill, h, svg } from "../core/dom.js";
import { t, tParts } from "../core/i18n.js";
import { icon } from "../core/icons.js";
import { copyButton } from "./copy.js";
import { withPlaces } from "./place.js";
import { visible } from "./text.js";

const SEEN = 500;

/** @typedef {import("../types.d.ts").PendingConfirmation} Confirmation */
/** @typedef {{icon: string, kind: string, text: string}} Outcome */

/** @param {string} tool @returns {boolean} whether it is an agent of another server, where a person decides */
const isRemote = (tool) => tool.startsWith("agent.");

/** @param {string} kind @param {string} tool @param {Node | string} shown its name, as it is shown */
export function waits(kind, tool, shown) {
  if (kind === "client_tool") return tParts("{tool} waits for its client", { tool: shown });
  if (isRemote(tool)) return tParts("{tool} waits for a decision elsewhere", { tool: shown });
  return tParts("{tool} needs a login", { tool: shown });
}

/** @param {Confirmation} asked @returns {(Node | string)[]} */
export function titleOf({ kind, tool }) {
  if (kind === "login" || kind === "client_tool") return waits(kind, tool, h("code", visible(tool)));
  if (kind === "tool") return tParts("Approve {tool}?", { tool: h("code", visible(tool)) });
  if (kind === "plan") return [t("Carry out this plan?")];
  if (kind === "step") return [t("A step failed. What now?")];
  if (kind === "ask_user") return [t("The model asks")];
  return tParts("{tool} asks", { tool: h("code", visible(tool)) });
}

/** @param {Confirmation} asked what is going to be done, in a sentence */
export function lead({ kind, description, reason, plan }) {
  const text = kind === "tool" ? description : kind === "plan" ? (plan?.goal ?? "") : reason;
  return text ? h("p.lead", visible(text)) : null;
}

/** @param {Confirmation} asked */
export function reasons({ kind, reason, rule, form, url, description }) {
  const why = kind === "tool" || kind === "plan" ? [h("dt", t("Reason")), h("dd", visible(reason))] : null;
  const note = (form || url) && description ? [h("dt", t("Then")), h("dd", visible(description))] : null;
  return h("dl.because", reason ? why : null, note, rule ? [h("dt", t("Rule")), h("dd", withPlaces(rule))] : null);
}

/** @param {Confirmation} asked whether it wants an answer, not an approval */
export const isQuestion = (asked) => !isProposal(asked) && !asked.url;

/** @param {Confirmation} asked whether it is about a call or a plan, which can be edited or replaced by a text */
export const isProposal = ({ kind }) => kind === "tool" || kind === "plan";

/** @param {Confirmation} asked whether it is about a plan of the agent's file, which the model cannot replace */
export const isFixed = ({ plan }) => Boolean(plan?.source);

/** @param {Confirmation} asked an address to visit, with its host, in which look-alike letters show */
export function address({ url }) {
  if (!url || !/^https?:/.test(url)) return null;
  const link = h("a.mono", { href: url, target: "_blank", rel: "noopener noreferrer" }, visible(url));
  const host = h("b.mono", new URL(url).host);
  return h("dl.because", h("dt", t("Host")), h("dd", host), h("dt", t("Address")), h("dd", link));
}

/** @param {HTMLElement | null} button */
export const click = (button) => button?.click();

/** @param {Confirmation} asked a question has no risk */
export function riskTag(asked) {
  const { risk } = asked;
  if (!isProposal(asked)) return null;
  return h(`span.tag.k-${risk === "high" || risk === "critical" ? "warn" : "none"}`, t("risk {risk}", { risk }));
}

/**
 * Return a button that asks the server for the address at which a person logs in, and then is a link to it.
 * @param {Confirmation} asked
 * @param {string | null | undefined} user of the run
 */
export function loginButton({ kind, tool }, user) {
  if (kind !== "login" || isRemote(tool)) return null;
  const place = h("p.row");
  const begin = async () => {
    fill(place, h("i.spin"));
    try {
      const path = apiPath`/logins/${tool.replace(/^mcp\./, "").split(".")[0]}`;
      const { url, host } = await post(path, {}, { query: { user }, cookies: true }); // this browser ends the login
      const link = h("a", { href: url, target: "_blank", rel: "noopener" }, t("Log in at {host}", { host }));
      fill(place, /^https?:/.test(url) ? link : host);
    } catch (error) {
      fill(place, start, h("span.problem.small", /** @type {Error} */ (error).message));
    }
  };
  const start = h("button.btn", { type: "button", "data-act": "login", onclick: () => void begin() }, t("Log in"));
  fill(place, start);
  return place;
}

/** @param {number} rest of a time @param {number} whole both in milliseconds */
export function ring(rest, whole) {
  const share = Math.max(0, Math.min(100, (100 * rest) / Math.max(1, whole)));
  const circle = { cx: 8, cy: 8, r: 6, pathLength: 100 };
  const arc = svg("circle", { ...circle, "stroke-dasharray": `${share.toFixed(1)} 100` });
  return svg("svg.ring", { viewBox: "0 0 16 16", "aria-hidden": "true" }, svg("circle", circle), arc);
}

/** @param {Confirmation | null} asked @param {Outcome} outcome how it was decided, in one line */
export function outcomeLine(asked, { icon: mark, kind, text }) {
  const name = asked?.tool || (asked?.kind === "plan" ? t("the plan") : t("the question"));
  const props = { tabindex: "-1" };
  return h(`p.decided.row.k-${kind}`, props, h("span.ink", icon(mark)), h("b", name), h("span.grow", visible(text)));
}

/** @param {string} text what a person has entered and not sent, to copy */
export function unsentNote(text) {
  if (!text) return null;
  const head = h("div.row", h("p.label.grow", t("Your changes were not sent")), copyButton(text));
  return h("div.unsent", head, h("pre.code.wrapped", h("span.l", visible(text))));
}

/**
 * Mark a node while it has been in view for half a second.
 * @param {HTMLElement} node
 * @param {AbortSignal} signal
 */
export function markSeen(node, signal) {
  let timer = 0;
  const mark = (/** @type {IntersectionObserverEntry[]} */ entries) => {
    clearTimeout(timer);
    if (!entries.at(-1)?.isIntersecting) delete node.dataset.seen;
    else timer = setTimeout(() => (node.dataset.seen = ""), SEEN);
  };
  const observer = new IntersectionObserver(mark, { threshold: 0.9 });
  observer.observe(node);
  signal.addEventListener("abort", () => observer.disconnect(), { once: true });
}
