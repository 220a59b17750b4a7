/** Menus of a button, after the ARIA pattern: arrow keys, Home, End and first letters move; Escape returns. */

import { h } from "../core/dom.js";
import { icon } from "../core/icons.js";

/**
 * @typedef {object} MenuItem
 * @property {string} label
 * @property {string} [icon]
 * @property {() => void} [run]
 * @property {string} [href]
 * @property {boolean} [danger]
 * @property {boolean} [checked] makes it a choice: the chosen one has a check mark
 */

/**
 * Let a button open a menu.
 * @param {HTMLElement} button
 * @param {readonly (MenuItem | null)[] | (() => readonly (MenuItem | null)[])} items null: a line between two items
 */
export function menu(button, items) {
  button.setAttribute("aria-haspopup", "menu");
  button.setAttribute("aria-expanded", "false");
  button.addEventListener("click", () => open(button, typeof items === "function" ? items() : items));
}

/** @param {HTMLElement} button @param {readonly (MenuItem | null)[]} items */
function open(button, items) {
  const label = button.getAttribute("aria-label") ?? button.textContent;
  const list = h("div.menu", { role: "menu", popover: "auto", "aria-label": label, onkeydown: move });
  list.append(...items.map((item) => (item ? row(item, () => list.hidePopover()) : h("hr"))));
  list.addEventListener("toggle", (event) => {
    if (/** @type {ToggleEvent} */ (event).newState === "open") return;
    button.setAttribute("aria-expanded", "false");
    if (list.contains(document.activeElement)) button.focus();
    list.remove();
  });
  button.after(list);
  list.showPopover();
  button.setAttribute("aria-expanded", "true");
  putBeside(list, button.getBoundingClientRect());
  rows(list)[0]?.focus();
}

/** @param {MenuItem} item @param {() => void} close */
function row({ label, icon: name, run, href, danger, checked }, close) {
  const mark = checked === undefined ? (name ?? null) : checked ? "check" : "none";
  const props = {
    role: checked === undefined ? "menuitem" : "menuitemradio",
    "aria-checked": checked === undefined ? null : String(checked),
    tabindex: "-1",
    class: danger ? "danger" : "",
    onclick: () => (close(), run?.()),
  };
  const drawn = mark === "none" ? h("i.i") : mark && icon(mark);
  return href ? h("a", { ...props, href }, drawn, label) : h("button", { ...props }, drawn, label);
}

/** @param {HTMLElement} list @returns {HTMLElement[]} */
const rows = (list) => [...list.querySelectorAll(":scope > [role]")].map((row) => /** @type {HTMLElement} */ (row));

/**
 * Put the list below the button, or above it if there is no room, within the window.
 * @param {HTMLElement} list
 * @param {DOMRect} at
 */
function putBeside(list, at) {
  const { width, height } = list.getBoundingClientRect();
  const below = at.bottom + 4 + height < innerHeight;
  const top = below ? at.bottom + 4 : Math.max(8, at.top - height - 4);
  const left = Math.max(8, Math.min(at.left, innerWidth - width - 8));
  list.style.setProperty("top", `${top}px`);
  list.style.setProperty("left", `${left}px`);
}

/** @param {KeyboardEvent} event */
function move(event) {
  const list = /** @type {HTMLElement} */ (event.currentTarget);
  const all = rows(list);
  const at = all.indexOf(/** @type {HTMLElement} */ (document.activeElement));
  const next = { ArrowDown: at + 1, ArrowUp: at - 1 + all.length, Home: 0, End: all.length - 1 }[event.key];
  const found = next === undefined ? byLetter(all, at, event.key) : all[next % all.length];
  if (event.key === "Tab") list.hidePopover();
  if (!found) return;
  event.preventDefault();
  found.focus();
}

/** @param {HTMLElement[]} all @param {number} at @param {string} key */
function byLetter(all, at, key) {
  if (key.length !== 1) return undefined;
  const order = [...all.slice(at + 1), ...all.slice(0, at + 1)];
  return order.find((row) => row.textContent?.trim().toLowerCase().startsWith(key.toLowerCase()));
}
