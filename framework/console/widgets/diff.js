/** Differences of two texts: lines, with the words that changed. */

import { h } from "../core/dom.js";
import { tn } from "../core/i18n.js";
import { visible } from "./text.js";

/** Products of lengths up to which the shortest difference is computed: beyond, all lines between count as changed. */
const MOST_LINES = 1_000_000;
const MOST_WORDS = 40_000;
const CONTEXT = 3;
const WORDS = /[\p{L}\p{N}_]+|\s+|[^\p{L}\p{N}_\s]/gu;

/** @typedef {{text: string, changed: boolean}} Part */
/** @typedef {{kind: "same" | "del" | "add", parts: Part[]}} Line */

/**
 * Return the lines of both texts: those of `before` are "same" and "del", those of `after` "same" and "add".
 * @param {string} before
 * @param {string} after
 * @returns {Line[]}
 */
export function diffLines(before, after) {
  /** @type {Line[]} */
  const lines = [];
  for (const { same, del, add } of sequences(before.split("\n"), after.split("\n"), MOST_LINES)) {
    for (const text of same) lines.push({ kind: "same", parts: [{ text, changed: false }] });
    if (del.length === add.length) del.forEach((text, i) => lines.push(...pair(text, add[i])));
    else {
      for (const text of del) lines.push({ kind: "del", parts: [{ text, changed: false }] });
      for (const text of add) lines.push({ kind: "add", parts: [{ text, changed: false }] });
    }
  }
  return lines;
}

/**
 * Show the difference of two texts. Lines far from any change are left out.
 * @param {string} before
 * @param {string} after
 * @param {{wrapped?: boolean}} [options] wrapped: break long lines
 */
export function diffView(before, after, { wrapped = true } = {}) {
  const block = h("code.code.diff", { class: wrapped ? "wrapped" : "" });
  const lines = diffLines(before, after);
  const near = nearChanges(lines);
  for (let i = 0; i < lines.length; i += 1) {
    let hidden = 0;
    while (i < lines.length && !near[i]) (hidden += 1), (i += 1);
    if (hidden) block.append(h("span.l.hunk", tn(hidden, "… 1 line is the same", "… {n} lines are the same")));
    if (i < lines.length) block.append(lineNode(lines[i]));
  }
  return block;
}

/**
 * Show a unified diff, or any other text that a tool describes a change with.
 * @param {string} text
 */
export function unifiedView(text) {
  const kinds = /** @type {Record<string, string>} */ ({ "+": "add", "-": "del", "@": "hunk" });
  const lines = text.split("\n").filter((line) => !/^(---|\+\+\+) /.test(line));
  return h("code.code.diff.wrapped", lines.map((line) => h("span.l", { class: kinds[line[0]] ?? "" }, visible(line))));
}

/** @param {Line} line */
function lineNode({ kind, parts }) {
  const sign = { same: "  ", del: "− ", add: "+ " }[kind];
  const shown = parts.map(({ text, changed }) => (changed ? h("b", visible(text)) : visible(text)));
  return h("span.l", { class: kind === "same" ? "" : kind }, sign, shown);
}

/** @param {Line[]} lines @returns {boolean[]} */
function nearChanges(lines) {
  const near = lines.map(() => false);
  lines.forEach(({ kind }, i) => kind !== "same" && near.fill(true, Math.max(0, i - CONTEXT), i + CONTEXT + 1));
  return near;
}

/** @param {string} before @param {string} after @returns {Line[]} a line that was replaced, with its changed words */
function pair(before, after) {
  /** @type {Part[][]} */
  const found = [[], []];
  /** @param {Part[]} parts @param {string[]} texts @param {boolean} changed */
  const add = (parts, texts, changed) => texts.length && parts.push({ text: texts.join(""), changed });
  for (const run of sequences(before.match(WORDS) ?? [], after.match(WORDS) ?? [], MOST_WORDS)) {
    for (const parts of found) add(parts, run.same, false);
    add(found[0], run.del, true);
    add(found[1], run.add, true);
  }
  return [{ kind: "del", parts: found[0] }, { kind: "add", parts: found[1] }];
}

/** @typedef {{same: string[], del: string[], add: string[]}} Run what stays, then what differs */

/** @param {string[]} a @param {string[]} b @param {number} most @returns {Run[]} */
function sequences(a, b, most) {
  let head = 0;
  while (head < a.length && head < b.length && a[head] === b[head]) head += 1;
  let tail = 0;
  const rest = Math.min(a.length, b.length) - head;
  while (tail < rest && a[a.length - 1 - tail] === b[b.length - 1 - tail]) tail += 1;
  const [left, right] = [a.slice(head, a.length - tail), b.slice(head, b.length - tail)];
  const middle = left.length * right.length > most ? [{ same: [], del: left, add: right }] : shortest(left, right);
  const [begin, end] = [a.slice(0, head), a.slice(a.length - tail)];
  return [{ same: begin, del: [], add: [] }, ...middle, { same: end, del: [], add: [] }];
}

/** @param {string[]} a @param {string[]} b @returns {Run[]} by the longest common subsequence */
function shortest(a, b) {
  const width = b.length + 1;
  const common = new Uint32Array((a.length + 1) * width); // of what follows each pair of places
  for (let i = a.length - 1; i >= 0; i -= 1) {
    for (let j = b.length - 1; j >= 0; j -= 1) {
      const at = i * width + j;
      common[at] = a[i] === b[j] ? common[at + width + 1] + 1 : Math.max(common[at + width], common[at + 1]);
    }
  }
  /** @type {Run[]} */
  const runs = [{ same: [], del: [], add: [] }];
  for (let i = 0, j = 0; i < a.length || j < b.length; ) {
    const run = /** @type {Run} */ (runs.at(-1));
    if (i < a.length && j < b.length && a[i] === b[j]) {
      if (run.del.length || run.add.length) runs.push({ same: [a[i]], del: [], add: [] });
      else run.same.push(a[i]);
      (i += 1), (j += 1);
    } else if (j >= b.length || (i < a.length && common[(i + 1) * width + j] >= common[i * width + j + 1])) {
      run.del.push(a[i++]);
    } else run.add.push(b[j++]);
  }
  return runs;
}
