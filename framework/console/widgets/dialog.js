/** Modal dialogs. The browser keeps the focus inside, and returns it to where it was. */

import { h } from "../core/dom.js";
import { t } from "../core/i18n.js";

const FIELDS = "[autofocus], input:not([type=checkbox]), textarea, select";

/**
 * Open a dialog. Escape closes it.
 * @param {HTMLElement} node its content
 * @param {{label: string, kind?: string, stay?: boolean, onClose?: () => void}} options label: its name for screen
 *   readers; kind: a class; stay: Escape does not close it
 * @returns {() => void} closes it
 */
export function openDialog(node, { label, kind = "", stay = false, onClose }) {
  const dialog = h("dialog", { "aria-label": label, class: `dlg ${kind}` }, node);
  dialog.addEventListener("cancel", (event) => stay && event.preventDefault());
  dialog.addEventListener("close", () => {
    dialog.remove();
    onClose?.();
  });
  const close = () => dialog.close();
  dialog.addEventListener("mousedown", (event) => !stay && isOutside(dialog, event) && close());
  document.body.append(dialog);
  dialog.showModal();
  const first = /** @type {HTMLElement | null} */ (dialog.querySelector(FIELDS));
  first?.focus();
  return close;
}

/**
 * Ask a question that can be answered with the action or not at all.
 * @param {{title: string, body?: string | Node, action: string, danger?: boolean}} question action: what the button
 *   does, such as "Roll back to 41"
 * @returns {Promise<boolean>} true for the action
 */
export function ask({ title, body, action, danger = false }) {
  return new Promise((resolve) => {
    let answer = false;
    const leave = h("button.btn", { onclick: () => close() }, t("Cancel"));
    const act = h("button.btn.primary", { class: danger ? "danger" : "", autofocus: true }, action);
    act.addEventListener("click", () => ((answer = true), close()));
    const text = h("div.in", h("h2.h15", title), body ? h("div.sec", body) : null);
    const content = h("section", text, h("footer", leave, act));
    const close = openDialog(content, { label: title, onClose: () => resolve(answer) });
  });
}

/** @param {Element} dialog @param {MouseEvent} event */
function isOutside(dialog, event) {
  const { left, right, top, bottom } = dialog.getBoundingClientRect();
  if (event.target !== dialog) return false; // a key or an option list of the browser may report another place
  return event.clientX < left || event.clientX > right || event.clientY < top || event.clientY > bottom;
}
