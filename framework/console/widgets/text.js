/** Text from outside: from models, tools and files. It is shown as text, with what cannot be seen made visible. */

import { fill, h } from "../core/dom.js";
import { bytes } from "../core/format.js";
import { t, tn } from "../core/i18n.js";

/** Characters of a line that are shown. */
export const LONGEST_LINE = 2000;
/** Direction marks, zero-width and control characters, tags, and halves of pairs. A joiner within an emoji is none. */
const HIDDEN = new RegExp(
  String.raw`[\0-\x08\x0b-\x1f\x7f-\x9f\xad\u034f\u061c]|[\u115f\u1160\u17b4\u17b5\u180e]` +
    String.raw`|[\u200b\u200c\u200e\u200f\u2028-\u202e\u2060-\u206f\u3164\ufeff\uffa0\ufff9-\ufffb]` +
    String.raw`|[\u{e0000}-\u{e007f}]|\p{Cs}` +
    String.raw`|(?<!\p{Extended_Pictographic}\ufe0f?|\p{Emoji_Modifier})\u200d`,
  "gu",
);

/** @typedef {string | {hidden: string} | {rest: string}} Piece a text, a character that cannot be seen, a line's end */

/**
 * Split a text into what is shown as it is, characters that cannot be seen (as `U+202E`), and ends of long lines.
 * @param {string} text
 * @param {number} [longest]
 * @returns {Piece[]}
 */
export function pieces(text, longest = LONGEST_LINE) {
  if (text.length <= longest) return marked(text);
  /** @type {Piece[]} */
  const found = [];
  let from = 0; // lines of ordinary length stay one piece
  for (let begin = 0; begin <= text.length; ) {
    const next = text.indexOf("\n", begin);
    const end = next < 0 ? text.length : next;
    if (end - begin > longest) {
      const cut = begin + longest - (isPair(text, begin + longest) ? 1 : 0);
      found.push(...marked(text.slice(from, cut)), { rest: text.slice(cut, end) });
      from = end;
    }
    begin = end + 1;
  }
  found.push(...marked(text.slice(from)));
  return found;
}

/**
 * Return a text with boxes in the place of characters that cannot be seen. Ends of long lines unfold at a click.
 * @param {string} text
 * @param {number} [longest]
 */
export function visible(text, longest = LONGEST_LINE) {
  const found = document.createDocumentFragment();
  for (const piece of pieces(text, longest)) {
    if (typeof piece === "string") found.append(piece);
    else if ("hidden" in piece) found.append(h("span.hid", { title: t("an invisible character") }, piece.hidden));
    else found.append(restOfLine(piece.rest));
  }
  return found;
}

/**
 * Return a block of text: its first lines, and a button for the rest.
 * @param {string} text
 * @param {{lines?: number}} [options]
 */
export function textBlock(text, { lines = 20 } = {}) {
  const end = endOfLine(text, lines);
  const block = h("pre.code.wrapped.text", visible(text.slice(0, end)));
  if (end >= text.length) return block;
  const rest = text.slice(end);
  const n = rest.split("\n").length - (rest.endsWith("\n") ? 2 : 1);
  if (n < 1) return block;
  const more = h("button.lk.more-lines", tn(n, "show 1 more line", "show {n} more lines"));
  more.addEventListener("click", () => fill(block, visible(text)));
  block.append("\n", more);
  return block;
}

/** @param {string} text */
function restOfLine(text) {
  const label = t("… {size} more", { size: bytes(new Blob([text]).size) });
  const more = h("button.cut-line", { title: t("Show the whole line") }, label);
  more.addEventListener("click", () => more.replaceWith(visible(text, Math.max(text.length, 1))));
  return more;
}

/** @param {string} text @returns {Piece[]} */
function marked(text) {
  /** @type {Piece[]} */
  const found = [];
  let from = 0;
  for (const match of text.matchAll(HIDDEN)) {
    if (match.index > from) found.push(text.slice(from, match.index));
    found.push({ hidden: codePoint(match[0]) });
    from = match.index + match[0].length;
  }
  if (from < text.length) found.push(text.slice(from));
  return found;
}

/** @param {string} character */
function codePoint(character) {
  return `U+${(character.codePointAt(0) ?? 0).toString(16).toUpperCase().padStart(4, "0")}`;
}

/** @param {string} text @param {number} at whether a pair of surrogates begins before this index and ends after it */
function isPair(text, at) {
  return /^[\ud800-\udbff][\udc00-\udfff]/.test(text.slice(at - 1, at + 1));
}

/** @param {string} text @param {number} lines the index at which a number of lines end */
function endOfLine(text, lines) {
  let end = -1;
  for (let line = 0; line < lines; line += 1) {
    end = text.indexOf("\n", end + 1);
    if (end < 0) return text.length;
  }
  return end;
}

/**
 * Return the conditions and the loop of a step, in words.
 * @param {Pick<import("../types.d.ts").PlanStep, "when" | "for_each" | "max_items">} step
 */
export function terms({ when, for_each: list, max_items: n }) {
  const conditions = Object.entries(when ?? {}).map(([name, value]) => `${name}: ${value}`);
  return [
    ...(conditions.length ? [t("only if {conditions}", { conditions: conditions.join(", ") })] : []),
    ...(list ? [t("once for each of {list}, at most {n}", { list, n: String(n) })] : []),
  ];
}
