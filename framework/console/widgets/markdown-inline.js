/** Text of models within a paragraph: emphasis, code and links, as nodes, and what is an address to open. */

import { h } from "../core/dom.js";
import { t } from "../core/i18n.js";
import { visible } from "./text.js";

/** Characters of a text that are shown. */
const LONGEST = 10_000;
const ADDRESS = /^(?:https?:\/\/|mailto:)[^\s<>"\\^`{|}]{1,2000}$/i;
/** @typedef {string | {type: string, href?: string, children: Inline[]}} Inline em, strong, s, code, sup, a, img, br */

/**
 * Return a link, or its Markdown if its address is none to open.
 * @param {string} raw
 * @param {string} href
 * @param {Inline[]} children
 * @returns {Inline}
 */
export const linkOf = (raw, href, children) =>
  webAddress(href) ? { type: "a", href, children: joined(children.flatMap(unlinked)) } : raw;

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
export function joined(found) {
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
