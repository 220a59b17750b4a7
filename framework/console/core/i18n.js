/** The language of the interface. The key of a text is the English text. */

const STORED = "agentsd.language";

/** @type {Record<string, string>} */
let texts = {};

/** @type {"en" | "zh"} */
export const language = chosen();

/** Load the texts of the language. Call it once, before anything is shown. */
export async function loadLanguage() {
  if (language === "zh") texts = (await import("../zh/index.js")).default;
  document.documentElement.lang = language === "zh" ? "zh-CN" : "en";
}

/**
 * Return a text in the language of the interface.
 * @param {string} english such as "{n} new below"
 * @param {Record<string, string | number>} [values] of the placeholders
 */
export function t(english, values = {}) {
  const text = texts[english] ?? english;
  return text.replace(/\{(\w+)\}/g, (all, name) => (name in values ? String(values[name]) : all));
}

/**
 * Return the text for a number of things. Chinese uses the plural's entry for every number.
 * @param {number} n
 * @param {string} one such as "1 run"
 * @param {string} many such as "{n} runs"
 * @param {Record<string, string | number>} [values]
 */
export function tn(n, one, many, values = {}) {
  return t(n === 1 && language === "en" ? one : many, { n: n.toLocaleString(language), ...values });
}

/**
 * Return a translation with nodes at the places of its placeholders.
 * @param {string} english
 * @param {Record<string, Node | string | number>} nodes
 * @returns {(Node | string)[]}
 */
export function tParts(english, nodes) {
  const pieces = (texts[english] ?? english).split(/\{(\w+)\}/);
  return pieces.map((piece, i) => (i % 2 === 0 ? piece : node(nodes[piece] ?? `{${piece}}`)));
}

/** @param {"en" | "zh"} code */
export function setLanguage(code) {
  localStorage.setItem(STORED, code);
  location.reload();
}

/** @param {Node | string | number} value */
function node(value) {
  return value instanceof Node ? value : String(value);
}

/** @returns {"en" | "zh"} */
function chosen() {
  const found = globalThis.localStorage?.getItem(STORED) ?? globalThis.navigator?.language ?? "en";
  return found.startsWith("zh") ? "zh" : "en";
}
