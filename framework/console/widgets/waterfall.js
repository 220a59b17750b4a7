/** The spans of a run on a time line, or as an outline: a ruler for each part, and a row for the pause after it. */

import { Component, define } from "../core/component.js";
import { fill, h, svg } from "../core/dom.js";
import { cost, duration, time, tokens } from "../core/format.js";
import { t } from "../core/i18n.js";
import { icon } from "../core/icons.js";
import { onKeys } from "../core/keys.js";
import { unfolded } from "./trace-layout.js";
import "./windowed-list.js";

/** @typedef {import("./trace-layout.js").Part} Part */
/** @typedef {import("./trace-layout.js").Row} Row */
/** @typedef {{from: number, to: number | null, what: any}} Pause after a part; times in Unix milliseconds */
/** @typedef {{key: string, part: Part, row?: Row, pause?: Pause}} Entry */

/** @type {Record<string, string>} */
const ICONS = { agent: "agents", run: "runs" };

/** A tree of rows. It dispatches `select` when `selected` changes. */
export class RunWaterfall extends Component {
  selected = "";
  /** @type {Part[]} */
  #parts = [];
  /** @type {(Pause | null)[]} */
  #pauses = [];
  /** @type {Map<string, string> | null} */
  #args = null;
  /** @type {Set<string>} */
  #folded = new Set();
  /** @type {Entry[]} */
  #entries = [];
  #list = /** @type {import("./windowed-list.js").WindowedList} */ (h("windowed-list", { role: "tree" }));

  start() {
    this.classList.add("wf");
    this.#list.setAttribute("aria-label", t("Waterfall"));
    fill(this, this.#list);
    const [down, up] = [() => this.#step(1), () => this.#step(-1)];
    const folds = { ArrowRight: () => this.#fold(false), ArrowLeft: () => this.#fold(true) };
    const ends = { Home: () => this.#step(-1e9), End: () => this.#step(1e9) };
    onKeys(null, { j: down, k: up }, this.stopped);
    onKeys(this, { ArrowDown: down, ArrowUp: up, ...folds, ...ends }, this.stopped);
    this.#draw();
  }

  /**
   * @param {Part[]} parts
   * @param {(Pause | null)[]} pauses what follows each part
   * @param {Map<string, string> | null} args of calls by id, for the outline, which has costs in place of bars
   */
  show(parts, pauses, args) {
    [this.#parts, this.#pauses, this.#args] = [parts, pauses, args];
    this.classList.toggle("outline", args !== null);
    if (this.isConnected) this.#draw();
  }

  /** Bring the selected row into view. */
  reveal() {
    this.#list.reveal(this.#entries.findIndex(({ row }) => row?.key === this.selected));
  }

  #draw() {
    this.#entries = this.#parts.flatMap((part, i) => {
      const rows = unfolded(part.rows, this.#folded).map((row) => ({ key: row.key, part, row }));
      const pause = this.#pauses[i];
      return [{ key: `part ${i}`, part }, ...rows, ...(pause ? [{ key: `pause ${i}`, part, pause }] : [])];
    });
    const height = (/** @type {Entry} */ { row, pause }) => (row ? 28 : pause ? 40 : 32);
    this.#list.show(
      this.#entries,
      (entry) => this.#node(entry),
      height,
      (node, entry) => this.#update(node, entry),
    );
  }

  /** @param {Entry} entry */
  #node({ row, pause }) {
    if (!row) return h(pause ? "div.wf-gap" : "div.wf-r.h", { role: "presentation" });
    return h("div.wf-r", { role: "treeitem", "aria-level": row.level, onclick: () => this.#select(row.key) });
  }

  /** @param {HTMLElement} node @param {Entry} entry */
  #update(node, { row, part, pause }) {
    const args = this.#args;
    if (!row) return fill(node, pause ? pauseCells(pause) : headCells(part, args !== null));
    const current = row.key === this.selected;
    node.setAttribute("aria-selected", String(current));
    node.tabIndex = current || (!this.selected && row === this.#parts[0].rows[0]) ? 0 : -1;
    const open = row.children ? !this.#folded.has(row.key) : null;
    const text = args?.get(row.span.attributes["gen_ai.tool.call.id"]) ?? "";
    const shown = [open, row.length, part.length, row.word, row.used, args !== null, text].join(" ");
    if (node.dataset.shown === shown) return;
    node.dataset.shown = shown;
    node.className = `wf-r k-${row.failed && !row.children ? "danger" : isThin(row) ? "none" : row.kind}`;
    if (open !== null) node.setAttribute("aria-expanded", String(open));
    const words = [row.label, row.kind, duration(row.length), row.word || t("success")];
    node.setAttribute("aria-label", words.join(", "));
    const toggle = (/** @type {Event} */ event) => (event.stopPropagation(), this.#toggle(row.key));
    const middle = args ? h("span.du", cost(row.cost || null)) : bar(row, part);
    fill(node, cells(row, open, toggle, text, middle));
  }

  /** @param {string} key */
  #select(key) {
    this.selected = key;
    this.dispatchEvent(new CustomEvent("select"));
    this.#draw();
  }

  /** @param {string} key */
  #toggle(key) {
    if (!this.#folded.delete(key)) this.#folded.add(key);
    this.#draw();
  }

  /** @param {boolean} fold */
  #fold(fold) {
    const row = this.#entries.find((entry) => entry.row?.key === this.selected)?.row;
    if (row?.children && this.#folded.has(row.key) !== fold) this.#toggle(row.key);
    else if (!fold) this.#step(1);
    else this.#go(this.#entries.findIndex((entry) => entry.row && entry.row.key === row?.parent));
  }

  /** @param {number} by */
  #step(by) {
    const rows = this.#entries.flatMap(({ row }, i) => (row ? [i] : []));
    const at = rows.findIndex((i) => this.#entries[i].row?.key === this.selected);
    this.#go(rows[Math.max(0, Math.min(rows.length - 1, at + by))]);
  }

  /** @param {number} index */
  #go(index) {
    const row = this.#entries[index]?.row;
    if (!row) return;
    this.#select(row.key);
    this.#list.reveal(index)?.focus({ preventScroll: true });
  }
}

/** @param {Row} row whether its bar is thin and grey */
const isThin = ({ kind, children }) => children > 0 || ["agent", "route", "run"].includes(kind);

/** @param {Part} part @param {boolean} outline */
function headCells({ number, start, length, ticks, open }, outline) {
  const marks = ticks.map((at, i) => [
    i ? gridLine(at, length) : null,
    svg("text", { x: share(at, length), dx: i ? 4 : 0, y: 20 }, duration(at)),
  ]);
  const name = t("Part {n}, {time}", { n: number, time: time(start) });
  const ruler = outline ? h("span.du", t("Cost")) : svg("svg", { "aria-hidden": "true" }, marks);
  const state = open ? h("span.k-accent.status", t("in progress")) : null;
  return [h("span.nm", name, state), h("span.tk", t("Tokens")), ruler, h("span.du", t("Took"))];
}

/** @param {Pause} pause */
function pauseCells({ from, to, what }) {
  const waits = t("Waits since {time}", { time: time(from) });
  const title = to === null ? waits : t("{time} later", { time: duration(to - from) });
  const times = to === null ? "" : `${time(from)} → ${time(to)}`;
  return [icon("human"), h("b.nw", title), h("span.cut.grow", what), h("span.num.dim.nw.not-s", times)];
}

/**
 * @param {Row} row @param {boolean | null} open @param {(event: Event) => void} onclick
 * @param {string} text @param {Element} middle
 */
function cells({ label, code, level, kind, used, word, length }, open, onclick, text, middle) {
  const fold = open === null ? h("span.tw") : h("span.tw", { onclick }, icon(open ? "down" : "right", { size: 12 }));
  const mark = icon(ICONS[kind] ?? kind, { size: 14 });
  const title = h(code ? "code.cut" : "span.cut", { title: label }, label);
  const more = text ? h("span.dim.mono.cut", text) : null;
  const name = h("span.nm", { css: { "--d": Math.min(level - 1, 8) } }, fold, mark, title, more);
  const sum = used ? `${tokens(used[0])} + ${tokens(used[1])}` : "";
  return [name, h("span.tk", sum), middle, h("span.du", word === "waits" ? t("waits") : duration(length))];
}

/** @param {Row} row @param {Part} part a bar, and why the row ended badly: after it, else before it, else above it */
function bar(row, { length, ticks }) {
  const { start, length: took, word } = row;
  const after = (start + took) / length < 0.86;
  const above = word && !after && start / length < 0.14;
  const size = above ? { y: 19, height: 4 } : isThin(row) ? { y: 12, height: 4 } : { y: 9, height: 10 };
  const width = `${Math.max(0.35, (took / length) * 100).toFixed(2)}%`;
  const rect = svg("rect", { x: share(start, length), width, rx: 2, ...size });
  const lines = ticks.slice(1).map((at) => gridLine(at, length));
  const x = share(after || above ? start + took : start, length);
  const place = after ? { dx: 8, y: 18 } : { dx: above ? 0 : -8, y: above ? 14 : 18, "text-anchor": "end" };
  const text = word && svg("text", { x, ...place }, word === "waits" ? t("needs approval") : word);
  return svg("svg", { "aria-hidden": "true" }, lines, rect, text);
}

/** @param {number} at @param {number} length */
const gridLine = (at, length) => svg("line.wf-t", { x1: share(at, length), x2: share(at, length), y2: 32 });

/** @param {number} at @param {number} length */
const share = (at, length) => `${Math.min(100, (at / length) * 100).toFixed(2)}%`;

define("run-waterfall", RunWaterfall);
