/** A list of which only the rows in view are in the page. */

import { Component, define } from "../core/component.js";
import { fill, h, keyed } from "../core/dom.js";

/** Rows above and below the view that are in the page, so that none is missing while it scrolls. */
const MARGIN = 8;

/** The element must be inside the element that scrolls. */
export class WindowedList extends Component {
  /** @type {readonly any[]} */
  #items = [];
  #tops = [0];
  #rows = h("div.wl");
  /** @type {(item: any) => HTMLElement} */
  #create = () => h("div");
  /** @type {(node: any, item: any, index: number) => void} */
  #update = () => {};

  start() {
    fill(this, this.#rows);
    const draw = this.frame(() => this.#show());
    // Scroll events do not bubble, but they can be captured, whichever element scrolls.
    document.addEventListener("scroll", draw, { capture: true, passive: true, signal: this.stopped });
    const watcher = new ResizeObserver(draw);
    watcher.observe(document.body);
    watcher.observe(this);
    this.stopped.addEventListener("abort", () => watcher.disconnect());
    this.#show();
  }

  /**
   * Show items. Rows of items with the same key are kept, with their focus.
   * @template {{key: string | number}} T
   * @param {readonly T[]} items
   * @param {(item: T) => HTMLElement} renderRow
   * @param {number | ((item: T) => number)} [rowHeight] in pixels
   * @param {(node: any, item: T, index: number) => void} [updateRow] called for rows that are new or may have changed
   */
  show(items, renderRow, rowHeight = 36, updateRow = () => {}) {
    [this.#items, this.#create, this.#update, this.#tops] = [items, renderRow, updateRow, [0]];
    let top = 0;
    for (const item of items) this.#tops.push((top += typeof rowHeight === "number" ? rowHeight : rowHeight(item)));
    this.#rows.style.setProperty("height", `${top}px`);
    if (this.isConnected) this.#show();
  }

  /**
   * Bring a row into view, and return it.
   * @param {number} index
   * @returns {HTMLElement | null}
   */
  reveal(index) {
    this.#show(index);
    const node = /** @type {HTMLElement | null} */ (this.#rows.querySelector(`:scope > [data-index="${index}"]`));
    node?.scrollIntoView({ block: "nearest" });
    return node;
  }

  /** @param {number} [also] index of a row that must be in the page, as that with the focus */
  #show(also = -1) {
    const { top } = this.#rows.getBoundingClientRect();
    const size = this.#items.length;
    const first = Math.max(0, this.#indexAt(-top) - MARGIN);
    const last = Math.min(size, this.#indexAt(innerHeight - top) + 1 + MARGIN);
    const focused = this.#rows.querySelector(":scope > :focus-within")?.getAttribute("data-index") ?? -1;
    const wanted = new Set([also, Number(focused)].filter((index) => index >= 0 && index < size));
    for (let index = first; index < last; index++) wanted.add(index);
    /** @param {number} i */
    const key = (i) => this.#items[i].key;
    const create = (/** @type {number} */ i) => this.#create(this.#items[i]);
    keyed(
      this.#rows,
      [...wanted].sort((a, b) => a - b),
      key,
      create,
      (node, i) => {
        node.setAttribute("data-index", String(i));
        node.style.setProperty("top", `${this.#tops[i]}px`);
        node.style.setProperty("height", `${this.#tops[i + 1] - this.#tops[i]}px`);
        this.#update(node, this.#items[i], i);
      },
    );
  }

  /** @param {number} y the row at a position */
  #indexAt(y) {
    let [low, high] = [0, this.#items.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.#tops[middle + 1] <= y) low = middle + 1;
      else high = middle;
    }
    return low;
  }
}

define("windowed-list", WindowedList);
