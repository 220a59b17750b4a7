/** Markdown of models as elements. No text of it becomes markup or a request, and every link is an address to open. */

import { h } from "../core/dom.js";
import { loadColours, readMarkdown } from "../core/libraries.js";
import { copyButton } from "./copy.js";
import { renderInline } from "./markdown-inline.js";
import { visible } from "./text.js";

/** Blocks at the end that a growing text may still change: an unfinished line may continue the block before it. */
const UNSETTLED = 2;

/** @typedef {import("./markdown-inline.js").Inline} Inline */
/**
 * @typedef {{type: string, text?: Inline[], code?: string, isOpen?: boolean, start?: number, blocks?: Block[],
 *   items?: Block[][], rows?: Inline[][][], sides?: string[]}} Block a p, h1 to h6, hr, pre (`text` is its language;
 *   open: its end is missing), blockquote, ul, ol or table, whose columns are aligned to `sides`
 */
/**
 * @typedef {{text: string, blocks: Block[], ends: number[], same: number, work: number}} Reading a text as blocks, the
 *   index after each, the number of blocks that are as in the reading before, and characters that were read for it
 */

/** @type {WeakMap<Element, Reading>} what an element shows */
const SHOWN = new WeakMap();

/**
 * Return Markdown as elements.
 * @param {string} text
 */
export function markdown(text) {
  const found = document.createDocumentFragment();
  found.append(...parse(text).map(renderBlock));
  return found;
}

/**
 * Show Markdown in an element. Blocks that it shows already stay, so a text can grow.
 * @param {Element} element
 * @param {string} text
 */
export function showMarkdown(element, text) {
  const before = SHOWN.get(element);
  const reading = read(text, before);
  while (element.children.length > reading.same) element.lastElementChild?.remove();
  element.append(...reading.blocks.slice(reading.same).map(renderBlock));
  SHOWN.set(element, reading);
}

/**
 * Split Markdown into blocks. In a console that is not built, which has no library for it, a text stays as it is.
 * @param {string} text
 * @returns {Block[]}
 */
export const parse = (text) => read(text).blocks;

/**
 * Read a text. Of one that continues another, only what is new and the last blocks before it are read.
 * @param {string} whole
 * @param {Reading} [before]
 * @returns {Reading}
 */
export function read(whole, before) {
  const text = whole.includes("\r") ? whole.replace(/\r\n?/g, "\n") : whole;
  if (!readMarkdown) return { text, blocks: [{ type: "p", text: [text] }], ends: [text.length], same: 0, work: 0 };
  if (!before || !text.startsWith(before.text)) return { text, ...readMarkdown(text), same: 0 };
  const grown = withMoreCode(text, before);
  if (grown) return grown;
  const settled = Math.max(0, before.blocks.length - UNSETTLED);
  const from = before.ends[settled - 1] ?? 0;
  const rest = readMarkdown(text.slice(from));
  const blocks = [...before.blocks.slice(0, settled), ...rest.blocks];
  const ends = [...before.ends.slice(0, settled), ...rest.ends.map((end) => from + end)];
  let same = settled;
  while (same < before.blocks.length && isSame(blocks[same], before.blocks[same])) same += 1;
  return { text, blocks, ends, same, work: rest.work };
}

/** @param {Block | undefined} one @param {Block} other */
const isSame = (one, other) => JSON.stringify(one) === JSON.stringify(other);

/** @param {string} text @param {Reading} before @returns {Reading | null} if its last block is code that continues */
function withMoreCode(text, before) {
  const last = before.blocks.at(-1);
  const more = text.slice(before.text.length);
  if (!last?.isOpen || !last.code || /[`~]/.test(more)) return null;
  const blocks = [...before.blocks.slice(0, -1), { ...last, code: last.code + more }];
  return { text, blocks, ends: [...before.ends.slice(0, -1), text.length], same: blocks.length - 1, work: more.length };
}

/** @param {Block} block @returns {Element} */
function renderBlock({ type, text = [], code = "", isOpen, start, blocks = [], items = [], rows = [], sides = [] }) {
  if (type === "pre") {
    const head = h("figcaption.row", h("span.grow.cut", renderInline(text)), copyButton(code));
    const body = h("pre.code", { tabindex: 0 }, visible(code));
    if (!isOpen && typeof text[0] === "string") void colour(body, code, text[0]);
    return h("figure.code-b", head, body);
  }
  if (type === "table") {
    /** @param {Inline[][]} row @param {string} tag */
    const cellsOf = (row, tag) =>
      h("tr", row.map((cell, i) => h(tag, { css: { "text-align": sides[i] ?? "" } }, renderInline(cell))));
    const body = rows.slice(1).map((row) => cellsOf(row, "td"));
    return h("div.scrollx", { tabindex: 0 }, h("table", h("thead", cellsOf(rows[0], "th")), h("tbody", body)));
  }
  if (!readMarkdown) return h("p.as-is", renderInline(text));
  const level = Number(/^h(\d)$/.exec(type)?.[1]);
  /** @param {Block} each @param {number} i */
  const inItem = (each, i) => (each.type === "p" && !i ? renderInline(each.text ?? []) : renderBlock(each));
  const inside = items.map((item) => h("li", item.map(inItem)));
  return h(level ? `h${Math.min(6, level + 2)}` : type, { start }, renderInline(text), blocks.map(renderBlock), inside);
}

/** @param {Element} body @param {string} code @param {string} language show the colours of a language that is known */
async function colour(body, code, language) {
  const name = /^[\w+#-]+/.exec(language)?.[0];
  const shown = name && loadColours && (await loadColours()).coloured(code, name);
  if (shown) body.replaceChildren(...shown);
}
