/** Short messages about what happened elsewhere: at most three, for 8 seconds, longer while they are read. */

import { h } from "../core/dom.js";
import { t } from "../core/i18n.js";
import { icon } from "../core/icons.js";

const SHOWN_MS = 8_000;
const MOST = 3;
/** @type {Record<string, string>} */
const ICONS = { ok: "check", accent: "bolt", danger: "alert", warn: "alert", human: "human", info: "info" };

/**
 * @typedef {object} Toast
 * @property {string} title
 * @property {string | Node | null} [body]
 * @property {"ok" | "accent" | "danger" | "warn" | "human" | "info"} [tone]
 * @property {{label: string, href?: string, run?: () => void}} [action] a link, or a function
 * @property {Node | null} [mark] stands before the action
 * @property {boolean} [stay] until it is closed
 */

/**
 * Show a message.
 * @param {Toast} toast
 * @returns {() => void} closes it
 */
export function toast({ title, body, tone = "info", action, mark, stay = false }) {
  const region = shelf();
  const close = () => item.remove();
  const button = h("button.ib", { "aria-label": t("Close"), onclick: close }, icon("x"));
  const item = h(
    `section.toast.k-${tone}`,
    { role: tone === "danger" ? "alert" : null },
    h("div.th", icon(ICONS[tone]), h("b.strong.grow", title), button),
    body ? h("div.tb", body) : null,
    action || mark ? h("div.tf", mark, h("span.grow"), action ? actionButton(action, close) : null) : null,
  );
  region.append(item);
  while (region.childElementCount > MOST) region.firstElementChild?.remove();
  if (!stay) closeLater(item, close);
  return close;
}

/** @param {NonNullable<Toast["action"]>} action @param {() => void} close */
function actionButton({ label, href, run }, close) {
  const onclick = () => (run?.(), close());
  if (href) return h("a.btn.sm.ghost", { href, onclick }, label);
  return h("button.btn.sm.ghost", { onclick }, label);
}

/** @param {HTMLElement} item @param {() => void} close */
function closeLater(item, close) {
  let timer = setTimeout(close, SHOWN_MS);
  const wait = () => clearTimeout(timer);
  const begin = () => {
    wait();
    timer = setTimeout(close, SHOWN_MS);
  };
  for (const type of ["mouseenter", "focusin"]) item.addEventListener(type, wait);
  for (const type of ["mouseleave", "focusout"]) item.addEventListener(type, begin);
}

function shelf() {
  const found = document.querySelector(".toasts");
  if (found) return found;
  const region = h("div.toasts", { role: "status", "aria-label": t("Messages") });
  document.body.append(region);
  return region;
}
