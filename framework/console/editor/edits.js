/** Changes of single values of a YAML text: everything else, comments included, stays as it is. */

import { childrenOf, find, unquote } from "./yaml.js";

/** @typedef {{from: number, to: number, text: string}} Edit */

/**
 * Return the path of the list of allowed tools in an agent file.
 * @param {string} text
 * @returns {string[]}
 */
export function allowPath(text) {
  if (find(text, ["skill_policy"])) return ["skill_policy", "allow"];
  const tools = find(text, ["tools"]);
  const isBelow = () => childrenOf(text, ["tools"]).some(({ path }) => path[1] !== "*");
  const hasKeys = tools && (text[tools.value] === "{" || isBelow());
  return hasKeys ? ["tools", "allow"] : ["tools"];
}

/**
 * Return the items of a list of texts; null if there is none.
 * @param {string} text
 * @param {readonly string[]} path
 */
export function listItems(text, path) {
  const list = find(text, path);
  if (!list || list.kind === "scalar") return null;
  return itemsOf(text, path).map(({ value, end }) => unquote(text.slice(value, end)));
}

/**
 * Return the edit that adds a text to a list, or removes it. A missing list is created.
 * @param {string} text
 * @param {readonly string[]} path
 * @param {string} item
 * @param {boolean} present
 * @returns {Edit | null} null if nothing has to change
 */
export function setItem(text, path, item, present) {
  const list = find(text, path);
  const items = itemsOf(text, path);
  const index = items.findIndex(({ value, end }) => unquote(text.slice(value, end)) === item);
  if (index >= 0 === present) return null;
  if (!list || (list.kind !== "flow" && !items.length)) return setValue(text, path, `[${written(item)}]`);
  return present ? addItem(text, list, items, item) : removeItem(text, list, items, index);
}

/**
 * Return the edit that sets a value, as it is to be written. Missing keys are created.
 * @param {string} text
 * @param {readonly string[]} path
 * @param {string} value
 * @returns {Edit}
 */
export function setValue(text, path, value) {
  const entry = find(text, path);
  if (entry) {
    const gap = text[entry.value - 1] === ":" ? " " : "";
    return { from: entry.value, to: entry.end, text: gap + value };
  }
  const above = path.slice(0, -1);
  const parent = above.length ? find(text, above) : null;
  const key = path[path.length - 1];
  if (above.length && (!parent || parent.kind === "scalar" || isEmpty(text, parent))) {
    return setValue(text, above, `{${key}: ${value}}`);
  }
  if (parent?.kind === "flow") {
    const inside = text.slice(parent.value + 1, parent.end - 1).trim();
    return insert(parent.end - 1, `${inside && !inside.endsWith(",") ? ", " : ""}${key}: ${value}`);
  }
  if (!parent) return insert(text.length, `${text && !text.endsWith("\n") ? "\n" : ""}${key}: ${value}\n`);
  const [sibling] = childrenOf(text, above);
  return insert(parent.end, `\n${" ".repeat(sibling?.indent ?? parent.indent + 2)}${key}: ${value}`);
}

/** @param {string} item @returns {string} as it is written in a list with brackets */
export function written(item) {
  const isPlain = /^[\w./$-][\w./*$ -]*$/.test(item) && !/^(-.*|\d.*|true|false|null|~|.* )$/i.test(item);
  return isPlain ? item : JSON.stringify(item);
}

/**
 * Return the edit that fixes a problem; null if the text is no longer there.
 * @param {string} text
 * @param {import("../types.d.ts").Problem} problem
 * @returns {Edit | null}
 */
export function fixEdit(text, { line, column, fix }) {
  if (!fix || !line) return null;
  const start = text.split("\n").slice(0, line - 1).reduce((sum, one) => sum + one.length + 1, 0);
  const from = text.indexOf(fix.written, start + (column ?? 1) - 1);
  return from < 0 ? null : { from, to: from + fix.written.length, text: fix.instead };
}

/** @param {string} text @param {Edit} edit */
export const applyEdit = (text, { from, to, text: inserted }) => text.slice(0, from) + inserted + text.slice(to);

/** @param {number} at @param {string} text @returns {Edit} */
const insert = (at, text) => ({ from: at, to: at, text });

/** @param {string} text @param {readonly string[]} path */
const itemsOf = (text, path) => childrenOf(text, path).filter((entry) => entry.path.at(-1) === "*");

/** @param {string} text @param {import("./yaml.js").Entry} entry */
const isEmpty = (text, entry) => !text.slice(entry.value, entry.end).trim();

/**
 * @param {string} text
 * @param {import("./yaml.js").Entry} list
 * @param {import("./yaml.js").Entry[]} items
 * @param {string} item
 */
function addItem(text, list, items, item) {
  const last = items.at(-1);
  if (list.kind !== "flow" && last) {
    return insert(endOfLine(text, last.end), `\n${" ".repeat(last.indent)}- ${written(item)}`);
  }
  if (last) return insert(last.end, `, ${written(item)}`);
  return insert(list.value + 1, written(item));
}

/**
 * @param {string} text
 * @param {import("./yaml.js").Entry} list
 * @param {import("./yaml.js").Entry[]} items
 * @param {number} index
 */
function removeItem(text, list, items, index) {
  const item = items[index];
  if (list.kind !== "flow") {
    const gap = text[list.value - 1] === ":" ? " " : "";
    if (items.length === 1) return { from: list.value, to: endOfLine(text, item.end), text: `${gap}[]` };
    const from = text.lastIndexOf("\n", item.start - 1) + 1;
    return { from, to: Math.min(text.length, endOfLine(text, item.end) + 1), text: "" };
  }
  if (index + 1 < items.length) return { from: item.start, to: items[index + 1].start, text: "" };
  return { from: index ? items[index - 1].end : item.start, to: item.end, text: "" };
}

/** @param {string} text @param {number} at */
function endOfLine(text, at) {
  const end = text.indexOf("\n", at);
  return end < 0 ? text.length : end;
}
