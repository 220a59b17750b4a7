/** Tabs, after the ARIA pattern: arrow keys move, and the panel follows. */

import { h } from "../core/dom.js";

/** @typedef {{id: string, label: string, count?: number | null}} Tab */

/**
 * Return a row of tabs.
 * @param {readonly Tab[]} items
 * @param {string} selected id of the selected tab
 * @param {(id: string) => void} onSelect
 * @param {{label?: string, kind?: "tabs" | "seg", panel?: string}} [options] panel: id of the element they control
 */
export function tabs(items, selected, onSelect, { label, kind = "tabs", panel } = {}) {
  const row = h(`div.${kind}`, { role: "tablist", "aria-label": label, onkeydown: move });
  /** @param {string} id */
  const select = (id) => {
    for (const tab of row.children) {
      const on = /** @type {HTMLElement} */ (tab).dataset.id === id;
      tab.setAttribute("aria-selected", String(on));
      tab.setAttribute("tabindex", on ? "0" : "-1");
    }
  };
  for (const { id, label: text, count } of items) {
    const number = count === undefined || count === null ? null : h("span.n.num", count.toLocaleString("en-US"));
    const onclick = () => (select(id), onSelect(id));
    const props = { role: "tab", "data-id": id, "aria-controls": panel, onclick };
    row.append(h("button", props, text, number));
  }
  select(selected);
  return row;
}

/** @param {KeyboardEvent} event */
function move(event) {
  const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
  const target = event.target instanceof Element ? event.target : null;
  const present = /** @type {HTMLElement | null | undefined} */ (target?.closest("[role=tab]"));
  if (!step || !present?.parentElement) return;
  const all = /** @type {HTMLElement[]} */ ([...present.parentElement.children]);
  const next = all[(all.indexOf(present) + step + all.length) % all.length];
  event.preventDefault();
  next.focus();
  next.click();
}
