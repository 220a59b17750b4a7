/** Markdown of models within a paragraph: emphasis, code and links. */

import { h } from "../core/dom.js";
import { t } from "../core/i18n.js";
import { visible } from "./text.js";

/** Marks that may be open at a time; more stay text. */
const MOST_OPEN = 16;
/** Characters of a paragraph that are read as Markdown. */
const LONGEST = 10_000;
const BARE = String.raw`https?:\/\/(?:(?!\]\()[^\s<>"\\^\x60{|}\u3000-\u303f\uff00-\uffef])+`;
const TOKEN = new RegExp(
  String.raw`\\([!-/:-@[-\x60{-~])|(\x60+)|(!?\[)|(\])|(?<![\w@])(<?)(${BARE})>?|(\*\*\*?|__|~~|[*_])|(?: {2,}|\\)\n`,
  "gi",
);
const TARGET = /\(\s*<?([^\s<>()]*(?:\([^\s<>()]*\)[^\s<>()]*)*)>?(?:\s+(?:"[^"\n]*"|'[^'\n]*'))?\s*\)/y;
const ADDRESS = /^(?:https?:\/\/|mailto:)[^\s<>"\\^`{|}]{1,2000}$/i;
const WORD = /[\p{L}\p{N}_]/u;
/** @type {Record<string, string>} */
const KINDS = { "*": "em", _: "em", "**": "strong", "***": "strong", __: "strong", "~~": "s" };

/** @typedef {string | {type: string, href?: string, children: Inline[]}} Inline em, strong, s, code, a, img or br */

/**
 * Split a paragraph into text, emphasis, code and links.
 * @param {string} whole
 * @returns {Inline[]}
 */
export function inline(whole) {
  const text = whole.slice(0, LONGEST);
  const token = new RegExp(TOKEN);
  /** @type {Inline[]} */
  const out = [];
  /** @type {{mark: string, at: number}[]} marks that may begin something, and where they are in the output */
  const open = [];
  let from = 0;
  /** @param {number} i @param {string} type @param {string} [href] take what follows an open mark together */
  const wrap = (i, type, href) => {
    const found = out.splice(open[i].at).slice(1);
    const children = joined(type === "a" ? found.flatMap(unlinked) : found);
    open.length = i;
    out.push({ type, ...(href === undefined ? {} : { href }), children });
  };
  /** @param {string} mark */
  const begin = (mark) => {
    if (open.length < MOST_OPEN) open.push({ mark, at: out.length });
    out.push(mark);
  };
  for (let found; (found = token.exec(text)); from = token.lastIndex) {
    const [all, escaped, ticks, bracket, closing, angle, bare, mark] = found;
    out.push(text.slice(from, found.index));
    if (escaped) out.push(escaped);
    else if (ticks) token.lastIndex = code(text, token.lastIndex, ticks, out);
    else if (bracket) begin(bracket);
    else if (closing) token.lastIndex = link(text, token.lastIndex, open, out, wrap);
    else if (bare) token.lastIndex = found.index + address(all, angle, bare, out);
    else if (mark) emphasis(text, found.index, mark, open, out, { wrap, begin });
    else out.push({ type: "br", children: [] });
  }
  return joined([...out, text.slice(from), whole.slice(LONGEST)]);
}

/** @param {string} text @param {number} from @param {string} ticks @param {Inline[]} out @returns {number} its end */
function code(text, from, ticks, out) {
  const end = new RegExp(`(?<!\`)${ticks}(?!\`)`).exec(text.slice(from));
  if (!end) return out.push(ticks), from;
  const inside = text.slice(from, from + end.index).replace(/\n/g, " ");
  out.push({ type: "code", children: [/^ .*\S.* $/.test(inside) ? inside.slice(1, -1) : inside] });
  return from + end.index + ticks.length;
}

/**
 * @param {string} text @param {number} from @param {{mark: string}[]} open @param {Inline[]} out
 * @param {(i: number, type: string, href: string) => void} wrap
 */
function link(text, from, open, out, wrap) {
  const i = open.findLastIndex(({ mark }) => mark.endsWith("["));
  TARGET.lastIndex = from;
  const [all, href] = (i >= 0 && TARGET.exec(text)) || ["", ""];
  const isImage = i >= 0 && open[i].mark === "![";
  if (all && (isImage || webAddress(href))) return wrap(i, isImage ? "img" : "a", href), from + all.length;
  if (i >= 0) open.length = i;
  return out.push("]"), from;
}

/** @param {string} all @param {string} angle @param {string} bare @param {Inline[]} out @returns {number} its length */
function address(all, angle, bare, out) {
  const isClosed = angle && all.endsWith(">");
  let end = bare.length;
  const unpaired = () => bare[end - 1] === ")" && !bare.slice(0, end).includes("(");
  while (!isClosed && (/[.,:;!?'*_~\]]/.test(bare[end - 1]) || unpaired())) end -= 1;
  const href = bare.slice(0, end);
  if (angle && !isClosed) out.push("<");
  out.push(webAddress(href) ? { type: "a", href, children: [href] } : href);
  return isClosed ? all.length : angle.length + end;
}

/**
 * @param {string} text @param {number} at @param {string} mark @param {{mark: string, at: number}[]} open
 * @param {Inline[]} out @param {{wrap: (i: number, type: string) => void, begin: (mark: string) => void}} act
 */
function emphasis(text, at, mark, open, out, { wrap, begin }) {
  const before = text[at - 1] ?? " ";
  const after = text[at + mark.length] ?? " ";
  const isInWord = mark[0] === "_" && WORD.test(before) && WORD.test(after);
  const i = /\s/.test(before) || isInWord ? -1 : open.findLastIndex((each) => each.mark === mark);
  if (i >= 0 && out.slice(open[i].at + 1).some(Boolean)) wrap(i, KINDS[mark]);
  else if (/\s/.test(after) || isInWord) out.push(mark);
  else begin(mark);
}

/**
 * Return the address as the browser reads it. With a user before the host it is none: it looks like another host's.
 * @param {string} text
 */
function webAddress(text) {
  const url = ADDRESS.test(text) && URL.canParse(text) ? new URL(text) : null;
  return url?.username || url?.password ? null : url;
}

/**
 * Return where a link leads, in punycode, or an empty text if the link begins with exactly that.
 * @param {{href: string, children: Inline[]}} link
 */
export function placeOf({ href, children }) {
  const url = webAddress(href);
  if (!url?.host) return url?.pathname ?? "";
  return children[0] === href && `${href}/`.toLowerCase().startsWith(`${url.origin}/`) ? "" : url.host;
}

/** @param {Inline} piece @returns {Inline[]} without links: a link contains no other */
const unlinked = (piece) =>
  typeof piece === "string" ? [piece]
  : piece.type === "a" ? piece.children
  : [{ ...piece, children: piece.children.flatMap(unlinked) }];

/** @param {Inline[]} found @returns {Inline[]} with neighbouring texts as one */
function joined(found) {
  /** @type {Inline[]} */
  const whole = [];
  for (const piece of found) {
    const last = whole.length - 1;
    if (typeof piece === "string" && typeof whole[last] === "string") whole[last] += piece;
    else if (piece) whole.push(piece);
  }
  return whole;
}

/**
 * Return the elements of a paragraph.
 * @param {Inline[]} text
 * @returns {Node[]}
 */
export function renderInline(text) {
  return text.map((piece) => {
    if (typeof piece === "string") return visible(piece, LONGEST);
    const { type, href = "", children } = piece;
    const inside = renderInline(children);
    if (type === "img") return h("span.dim", `${t("image not loaded")}: `, inside, " ", h("code", visible(href)));
    if (type !== "a") return h(type, inside);
    const to = webAddress(href)?.href;
    const place = placeOf({ href, children });
    const link = h("a.lk", { href: to, target: "_blank", rel: "noopener noreferrer", title: to }, inside);
    return h("span", link, place && h("span.dim", " (", visible(place), ")"));
  });
}
