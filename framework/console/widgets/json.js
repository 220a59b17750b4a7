/** JSON as people read it. */

import { h } from "../core/dom.js";
import { textBlock, visible } from "./text.js";

const LONGEST_ARGUMENT = 120;
const LARGEST_COLOURED = 20_000;
const TOKENS = /("(?:[^"\\]|\\.)*")(\s*:)?|(-?\d[\d.eE+-]*|true|false|null)/g;

/**
 * Return a value as JSON at two spaces.
 * @param {unknown} value
 * @param {{lines?: number}} [options]
 */
export function jsonBlock(value, options) {
  const text = JSON.stringify(value, null, 2) ?? "null";
  const isLong = text.length > LARGEST_COLOURED || text.split("\n").length > (options?.lines ?? 20);
  if (isLong) return textBlock(text, options);
  return h("pre.code.wrapped.text", [...coloured(text)]);
}

/**
 * Return arguments of a call: a script as its text, others as JSON.
 * @param {Record<string, any>} args
 * @param {{lines?: number}} [options]
 */
export function argumentsBlock(args, options) {
  const { code, ...others } = args;
  const isScript = typeof code === "string" && code.includes("\n") && !Object.keys(others).length;
  return isScript ? textBlock(code, options) : jsonBlock(args, options);
}

/**
 * Return arguments of a call in one line: `key="text" key=12`.
 * @param {Record<string, unknown>} args
 */
export function argumentLine(args) {
  return visible(argumentText(args));
}

/**
 * Return arguments in one line as text.
 * @param {Record<string, unknown>} args
 */
export function argumentText(args) {
  const parts = Object.entries(args ?? {}).map(([name, value]) => `${name}=${short(value)}`);
  return parts.join(" ").slice(0, 4 * LONGEST_ARGUMENT);
}

/** @param {unknown} value */
function short(value) {
  const whole = typeof value === "string" && value.length > LONGEST_ARGUMENT ? value.slice(0, LONGEST_ARGUMENT) : value;
  const text = JSON.stringify(whole) ?? "null";
  return text.length > LONGEST_ARGUMENT + 2 || whole !== value ? `${text.slice(0, LONGEST_ARGUMENT)}…` : text;
}

/** @param {string} text */
function* coloured(text) {
  let from = 0;
  for (const { index, 0: token, 1: quoted, 2: colon } of text.matchAll(TOKENS)) {
    yield visible(text.slice(from, index));
    const word = colon ? quoted : token;
    yield h(`span.${colon ? "ck" : quoted ? "cs" : "cn"}`, visible(word));
    from = index + word.length;
  }
  yield visible(text.slice(from));
}
