/** Markdown of models as blocks, by the lexer of marked: no text is lost, raw HTML stays text, and work is bounded. */

import { Lexer, Marked, Tokenizer } from "marked";
import { joined, linkOf } from "../widgets/markdown-inline.js";

/** @typedef {import("../widgets/markdown.js").Block} Block */
/** @typedef {import("../widgets/markdown-inline.js").Inline} Inline */

/** Lists and quotes, or marks of emphasis, within each other; deeper ones stay text. */
const DEEPEST = 8;
/** Characters of a paragraph that are read together: the lexer compares each mark in it with the others. */
const LONGEST = 2000;
/** Characters that become one list or quote: the lexer copies what follows for each of its parts. */
const LONGEST_LIST = 16_000;
/** How many times the lexer may read each character, on average: what is in a list or a quote is read again. */
const MOST_READ = 12;
/** Characters that end a bare address, besides those of Markdown: punctuation of Chinese texts. */
const WIDE_PUNCTUATION = /[\u3000-\u303f\uff00-\uffef]/;
/** The lexer's name of addresses without marks. */
const BARE = "url";
/** @type {Record<string, string>} */
const INLINE = { em: "em", strong: "strong", del: "s", codespan: "code", br: "br" };
/** @type {Record<string, string>} */
const SIDES = { center: "center", right: "end" };

/** Leaves out what would hide text or cost too much: HTML, definitions of addresses, what is nested too deep. */
class OurTokenizer extends Tokenizer {
  /** Lists and quotes around the present place. */
  depth = 0;

  html() {
    return undefined;
  }

  tag() {
    return undefined;
  }

  def() {
    return undefined;
  }

  /** @param {string} src */
  blockquote(src) {
    return this.#inside(() => super.blockquote(beginning(src)));
  }

  /** @param {string} src */
  list(src) {
    return this.#inside(() => super.list(beginning(src)));
  }

  /** @param {string} src */
  link(src) {
    return src.includes("](") ? super.link(src) : undefined;
  }

  /** There are no definitions of addresses. @param {string} src @returns {any} */
  reflink(src) {
    return src[0] === "[" ? { type: "text", raw: "[", text: "[" } : undefined;
  }

  /** @param {string} src */
  [BARE](src) {
    const found = super[BARE](src);
    const end = found?.raw.search(WIDE_PUNCTUATION) ?? -1;
    return found && end >= 0 ? super[BARE](src.slice(0, end)) : found;
  }

  /** @template {{raw: string} | undefined} T @param {() => T} read @returns {T | undefined} */
  #inside(read) {
    if (this.depth >= DEEPEST) return undefined;
    this.depth += 1;
    const found = read();
    this.depth -= 1;
    /** @type {OurLexer} */ (this.lexer).count(found?.raw.length ?? 0);
    return found;
  }
}

/** A text costs more than others of its length: it is shown as it is. */
class TooMuchWork extends Error {}

class OurLexer extends Lexer {
  /** Characters that were read, those of nested texts again. */
  work = 0;
  allowed = 0;
  #marks = 0;

  /** @param {any} options @param {number} length of the text */
  constructor(options, length) {
    super(options);
    this.allowed = MOST_READ * (length + LONGEST);
  }

  /** @param {number} read */
  count(read) {
    this.work += read;
    if (this.work > this.allowed) throw new TooMuchWork();
  }

  /** @param {string} src @param {any} [tokens] @param {boolean} [cut] @returns {any} */
  blockTokens(src, tokens = [], cut = false) {
    this.count(src.length);
    return super.blockTokens(src, tokens, cut);
  }

  /** @param {string} src @param {any} [tokens] @returns {any} */
  inlineTokens(src, tokens = []) {
    this.count(src.length);
    if (this.#marks >= DEEPEST) return tokens.push({ type: "text", raw: src, text: src }), tokens;
    this.#marks += 1;
    for (let rest = src; rest; ) {
      const cut = rest.length > LONGEST ? rest.lastIndexOf(" ", LONGEST) : -1;
      const length = cut > 0 ? cut : LONGEST;
      super.inlineTokens(rest.slice(0, length), tokens);
      rest = rest.slice(length);
    }
    this.#marks -= 1;
    return tokens;
  }
}

/** @param {string} src @returns {string} its first lines, up to one that is not indented */
function beginning(src) {
  if (src.length <= LONGEST_LIST) return src;
  let end = src.lastIndexOf("\n", LONGEST_LIST);
  while (end > 0 && /\s/.test(src[end + 1])) end = src.lastIndexOf("\n", end - 1);
  return src.slice(0, end > 0 ? end + 1 : LONGEST_LIST);
}

/** `[^1]` in a text, and at the beginning of the paragraph that explains it, which stays where it is. */
const footnote = {
  name: "footnote",
  level: "inline",
  start: (/** @type {string} */ src) => src.indexOf("[^"),
  tokenizer(/** @type {string} */ src) {
    const [raw, label] = /^\[\^([^\s[\]]{1,40})\](?!\()/.exec(src) ?? [];
    return raw === undefined ? undefined : { type: "footnote", raw, label };
  },
};
const { defaults } = new Marked({ gfm: true, extensions: [/** @type {any} */ (footnote)] });

/**
 * Split Markdown into blocks.
 * @param {string} text with line ends `\n`
 * @returns {{blocks: Block[], ends: number[], work: number}} with the index of the text after each block, and the
 *   number of characters that were read, those of nested texts again
 */
export function readMarkdown(text) {
  const lexer = new OurLexer({ ...defaults, tokenizer: new OurTokenizer() }, text.length);
  try {
    return { ...blocksWithEnds(lexer, text), work: lexer.work };
  } catch (error) {
    if (!(error instanceof TooMuchWork)) throw error;
    return { blocks: [{ type: "p", text: [text] }], ends: [text.length], work: lexer.work };
  }
}

/** @param {OurLexer} lexer @param {string} text */
function blocksWithEnds(lexer, text) {
  /** @type {number[]} */
  const ends = [];
  /** @type {Block[]} */
  const blocks = [];
  let end = 0;
  for (const token of lexer.lex(text)) {
    end += token.raw.length;
    const found = blocksOf([token], lexer);
    blocks.push(...found);
    ends.push(...found.map(() => end));
  }
  return { blocks, ends };
}

/** @param {any[]} tokens @param {OurLexer} lexer @returns {Block[]} */
const blocksOf = (tokens, lexer) => tokens.flatMap((token) => blockOf(token, lexer) ?? []);

/** @param {any} token @param {OurLexer} lexer @returns {Block | null} */
function blockOf(token, lexer) {
  const { type, tokens = [] } = token;
  if (type === "space") return null;
  if (type === "heading") return { type: `h${token.depth}`, text: inlineOf(tokens) };
  if (type === "hr") return { type };
  if (type === "code") return codeOf(token);
  if (type === "blockquote") return { type, blocks: blocksOf(tokens, lexer) };
  if (type === "table") return tableOf(token, lexer);
  if (type === "list") {
    const items = token.items.map((/** @type {any} */ item) => itemOf(item.tokens, lexer));
    return token.ordered ? { type: "ol", start: token.start, items } : { type: "ul", items };
  }
  return { type: "p", text: inlineOf(tokens.length ? tokens : [{ ...token, type: "text" }]) };
}

/** @param {any[]} tokens of a list's item @param {OurLexer} lexer @returns {Block[]} with its box in the first one */
function itemOf(tokens, lexer) {
  const box = tokens.findIndex(({ type }) => type === "checkbox");
  const rest = blocksOf(tokens.filter((_, i) => i !== box), lexer);
  if (box < 0) return rest;
  const mark = tokens[box].checked ? "☑ " : "☐ ";
  const [first, ...others] = rest;
  if (first?.type !== "p") return [{ type: "p", text: [mark] }, ...rest];
  return [{ ...first, text: joined([mark, ...(first.text ?? [])]) }, ...others];
}

/** @param {any} token @returns {Block} */
function codeOf({ raw, lang, text, codeBlockStyle }) {
  const [, indent, fence] = /^( *)(`{3,}|~{3,})/.exec(raw) ?? ["", " ", ""];
  const last = raw.trimEnd().split("\n").slice(1).at(-1)?.trim() ?? "";
  if (codeBlockStyle || last.startsWith(fence)) return { type: "pre", text: [lang ?? ""], code: text };
  const begin = raw.indexOf("\n") + 1; // it may grow, so it is what follows the first line
  return { type: "pre", text: [lang ?? ""], code: indent || !begin ? text : raw.slice(begin), isOpen: true };
}

/**
 * Return a table with all cells of its rows: marked drops those that the head lacks.
 * @param {any} token @param {OurLexer} lexer @returns {Block}
 */
function tableOf({ raw, align }, lexer) {
  const [head, , ...rows] = raw.trim().split("\n");
  return {
    type: "table",
    rows: [head, ...rows].map((row) => cells(row).map((cell) => inlineOf(lexer.inlineTokens(cell)))),
    sides: align.map((/** @type {string | null} */ side) => SIDES[side ?? ""] ?? ""),
  };
}

/** @param {string} line */
function cells(line) {
  const inside = line.trim().replace(/^\|/, "").replace(/(?<!\\)\|$/, "");
  return inside.split(/(?<!\\)\|/).map((cell) => cell.trim().replace(/\\\|/g, "|"));
}

/** @param {any[]} tokens @returns {Inline[]} */
const inlineOf = (tokens) => joined(tokens.flatMap(pieceOf));

/** @param {any} token @returns {Inline | Inline[]} */
function pieceOf({ type, raw, text = raw, href, tokens, label, checked }) {
  if (type === "checkbox") return checked ? "☑ " : "☐ ";
  if (type === "footnote") return { type: "sup", children: [label] };
  if (type === "image") return { type: "img", href, children: [text] };
  if (type === "link") return linkOf(raw, href, inlineOf(tokens));
  if (INLINE[type]) return { type: INLINE[type], children: tokens ? inlineOf(tokens) : type === "br" ? [] : [text] };
  return tokens ? inlineOf(tokens) : text;
}
