/** Markdown of models as elements. No text of it becomes markup or a request, and every link is an address to open. */

import { h } from "../core/dom.js";
import { copyButton } from "./copy.js";
import { inline, renderInline } from "./markdown-inline.js";
import { visible } from "./text.js";

/** Lists and quotes within each other; deeper ones stay text. */
const DEEPEST = 8;
const FENCE = /^ {0,3}(`{3,}|~{3,})[ \t]*([^`]*)$/;
const HEADING = /^ {0,3}(#{1,6})(?=[ \t]|$)(.*)$/;
const RULE = /^ {0,3}(?:(?:\*[ \t]*){3,}|(?:-[ \t]*){3,}|(?:_[ \t]*){3,})$/;
const ITEM = /^( {0,3})([-*+]|(\d{1,9})[.)])(?:[ \t]+|$)/;
const INSIDE = /^(?: {2}|\t)\s*\S/;
const QUOTE = /^ {0,3}> ?/;
const DELIMITERS = /^[ \t]*\|?(?:[ \t]*:?-+:?[ \t]*\|)*[ \t]*:?-+:?[ \t]*\|?[ \t]*$/;

/** @typedef {import("./markdown-inline.js").Inline} Inline */
/**
 * @typedef {{type: string, text?: Inline[], code?: string, start?: number, blocks?: Block[], items?: Block[][],
 *   rows?: Inline[][][], sides?: string[]}} Block a p, h1 to h6, hr, pre (`text` is its language), blockquote, ul,
 *   ol or table, whose columns are aligned to `sides`
 */
/** @typedef {[Block, number]} Found a block, and the number of the line after it */

/** @type {WeakMap<Element, string[]>} the blocks that an element shows */
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
  const blocks = parse(text);
  const texts = blocks.map((block) => JSON.stringify(block));
  const before = SHOWN.get(element) ?? [];
  let same = 0;
  while (same < texts.length && texts[same] === before[same]) same += 1;
  while (element.children.length > same) element.lastElementChild?.remove();
  element.append(...blocks.slice(same).map(renderBlock));
  SHOWN.set(element, texts);
}

/**
 * Split Markdown into blocks.
 * @param {string} text
 * @returns {Block[]}
 */
export function parse(text) {
  return blocksOf(text.replace(/\r\n?/g, "\n").split("\n"), 0);
}

/** @param {string[]} lines @param {number} depth */
function blocksOf(lines, depth) {
  /** @type {Block[]} */
  const found = [];
  for (let at = 0; at < lines.length; ) {
    if (!lines[at].trim()) at += 1;
    else {
      const [block, next] = blockAt(lines, at, depth);
      found.push(block);
      at = next;
    }
  }
  return found;
}

/** @param {string[]} lines @param {number} at @param {number} depth @returns {Found} */
function blockAt(lines, at, depth) {
  const line = lines[at];
  if (FENCE.test(line)) return fenced(lines, at);
  const [, marks, title = ""] = HEADING.exec(line) ?? [];
  if (marks) return [{ type: `h${marks.length}`, text: inline(title.trim().replace(/\s#+$/, "")) }, at + 1];
  if (RULE.test(line)) return [{ type: "hr" }, at + 1];
  if (depth < DEEPEST && QUOTE.test(line)) return quote(lines, at, depth);
  if (depth < DEEPEST && ITEM.test(line)) return list(lines, at, depth);
  if (isTable(lines, at)) return table(lines, at);
  let end = at + 1;
  while (end < lines.length && lines[end].trim() && !interrupts(lines, end, depth)) end += 1;
  return [{ type: "p", text: inline(lines.slice(at, end).map((each) => each.trimStart()).join("\n")) }, end];
}

/** @param {string[]} lines @param {number} at @param {number} depth whether a block begins that ends a paragraph */
function interrupts(lines, at, depth) {
  const line = lines[at];
  if (FENCE.test(line) || HEADING.test(line) || RULE.test(line) || isTable(lines, at)) return true;
  const item = ITEM.exec(line);
  return depth < DEEPEST && (QUOTE.test(line) || (item !== null && (item[3] ?? "1") === "1"));
}

/** @param {string[]} lines @param {number} at @returns {Found} */
function fenced(lines, at) {
  const [, fence, language] = /** @type {RegExpExecArray} */ (FENCE.exec(lines[at]));
  const close = new RegExp(`^ {0,3}${fence[0]}{${fence.length},}\\s*$`);
  let end = at + 1;
  while (end < lines.length && !close.test(lines[end])) end += 1;
  return [{ type: "pre", text: [language.trim()], code: lines.slice(at + 1, end).join("\n") }, end + 1];
}

/** @param {string[]} lines @param {number} at @param {number} depth @returns {Found} */
function quote(lines, at, depth) {
  let end = at;
  while (end < lines.length && QUOTE.test(lines[end])) end += 1;
  const inside = lines.slice(at, end).map((line) => line.replace(QUOTE, ""));
  return [{ type: "blockquote", blocks: blocksOf(inside, depth + 1) }, end];
}

/** @param {string[]} lines @param {number} at @param {number} depth @returns {Found} */
function list(lines, at, depth) {
  const [, , mark, number] = /** @type {RegExpExecArray} */ (ITEM.exec(lines[at]));
  /** @type {Block[][]} */
  const items = [];
  while (at < lines.length) {
    const begin = ITEM.exec(lines[at]);
    if (!begin || begin[2].at(-1) !== mark.at(-1) || RULE.test(lines[at])) break;
    const width = begin[0].length;
    const inside = [lines[at].slice(width).replace(/^\[([ xX])\] /, (_, x) => (x === " " ? "☐ " : "☑ "))];
    for (at += 1; at < lines.length && continues(lines, at, inside.at(-1) ?? ""); at += 1) {
      const indent = Math.min(width, lines[at].search(/\S|$/));
      inside.push(lines[at].slice(lines[at][0] === "\t" ? 1 : indent));
    }
    items.push(blocksOf(inside, depth + 1));
  }
  return [number ? { type: "ol", start: Number(number), items } : { type: "ul", items }, at];
}

/** @param {string[]} lines @param {number} at @param {string} before whether a line belongs to the list */
function continues(lines, at, before) {
  const next = lines[at + 1] ?? "";
  if (!lines[at].trim()) return INSIDE.test(next) || ITEM.test(next);
  return INSIDE.test(lines[at]) || (before.trim() !== "" && !ITEM.test(lines[at]) && !interrupts(lines, at, 0));
}

/** @param {string[]} lines @param {number} at */
function isTable(lines, at) {
  const next = lines[at + 1] ?? "";
  if (!lines[at].includes("|") || !next.includes("-") || !DELIMITERS.test(next)) return false;
  return cells(lines[at]).length === cells(next).length;
}

/** @param {string[]} lines @param {number} at @returns {Found} */
function table(lines, at) {
  let end = at + 2;
  while (end < lines.length && lines[end].includes("|")) end += 1;
  const rows = [lines[at], ...lines.slice(at + 2, end)].map((line) => cells(line).map((cell) => inline(cell)));
  const sides = cells(lines[at + 1]).map((cell) => (cell.endsWith(":") ? (cell[0] === ":" ? "center" : "end") : ""));
  return [{ type: "table", rows, sides }, end];
}

/** @param {string} line */
function cells(line) {
  const inside = line.trim().replace(/^\|/, "").replace(/(?<!\\)\|$/, "");
  return inside.split(/(?<!\\)\|/).map((cell) => cell.trim().replace(/\\\|/g, "|"));
}

/** @param {Block} block @returns {Element} */
function renderBlock({ type, text = [], code = "", start, blocks = [], items = [], rows = [], sides = [] }) {
  if (type === "pre") {
    const head = h("figcaption.row", h("span.grow.cut", renderInline(text)), copyButton(code));
    return h("figure.code-b", head, h("pre.code", { tabindex: 0 }, visible(code)));
  }
  if (type === "table") {
    /** @param {Inline[][]} row @param {string} tag */
    const cellsOf = (row, tag) =>
      h("tr", row.map((cell, i) => h(tag, { css: { "text-align": sides[i] ?? "" } }, renderInline(cell))));
    const body = rows.slice(1).map((row) => cellsOf(row, "td"));
    return h("div.scrollx", { tabindex: 0 }, h("table", h("thead", cellsOf(rows[0], "th")), h("tbody", body)));
  }
  const level = Number(/^h(\d)$/.exec(type)?.[1]);
  /** @param {Block} each @param {number} i */
  const inItem = (each, i) => (each.type === "p" && !i ? renderInline(each.text ?? []) : renderBlock(each));
  const inside = items.map((item) => h("li", item.map(inItem)));
  return h(level ? `h${Math.min(6, level + 2)}` : type, { start }, renderInline(text), blocks.map(renderBlock), inside);
}
