/** A problem of a file: its place, the source line with a caret, and what is meant. */

import { h } from "../core/dom.js";
import { t, tParts } from "../core/i18n.js";
import { icon } from "../core/icons.js";
import { place, withPlaces } from "./place.js";
import { visible } from "./text.js";

const WIDTH = 120;
const WIDE = /[\u2e80-\ud7a3\uf900-\ufaff\uff00-\uff60\u{1f300}-\u{3ffff}]/u;

/** @typedef {import("../types.d.ts").Problem} Problem */

/** @param {Problem} problem the same for all that is wrong at one place */
export const placeOf = ({ path, line, column, message }) => (line ? [path, line, column].join(":") : message);

/**
 * Return cards for problems. Those of one place share a card, under the first of them.
 * @param {readonly Problem[]} problems
 * @param {(problem: Problem) => (() => void) | undefined} [fixOf] writes the fix of a problem
 */
export function problemCards(problems, fixOf) {
  return [...new Set(problems.map(placeOf))].map((place) => {
    const [first, ...also] = problems.filter((problem) => placeOf(problem) === place);
    return problemCard(first, fixOf?.(first), also);
  });
}

/**
 * Return a card for a problem.
 * @param {Problem} problem
 * @param {() => void} [onFix] writes the fix; without it, the fix is only named
 * @param {readonly Problem[]} [also] what else is to say of the place
 */
export function problemCard(problem, onFix, also = []) {
  const { severity, path, line, column, message, hint, fix } = problem;
  const where = [path, line, column].filter(Boolean).join(":");
  const [kind, word] = severity === "error" ? ["danger", t("Error")] : ["warn", t("Warning")];
  const source = caret(problem);
  const beside = source?.carets && hint && hint.length < 72 ? ` ${hint}` : "";
  const words = fix && { new: h("code", fix.instead), old: h("code", fix.written) };
  const more = [
    source && h("code.code", { tabindex: 0, role: "group", "aria-label": t("Source") },
      h("span.l.hit", { "data-n": source.line }, visible(source.text)),
      source.carets ? h("span.l", { "data-n": "" }, source.pad, h("span.car", source.carets, beside)) : null),
    hint && !beside ? h("p.sec", withPlaces(hint)) : null,
    also.map((other) => h("p.sec", withPlaces(other.message))),
    words && (onFix ? h("p", h("button.btn.sm", { onclick: onFix }, tParts("Write {new}", words)))
      : h("p.sec", tParts("Write {new} in place of {old}.", words))),
  ].flat().filter(Boolean);
  return h(`section.card.problem.k-${kind}`, { "aria-label": `${word}: ${where}` },
    h("header", h("span.ink", icon("alert")), h("p.strong.grow", withPlaces(message)), place(where)),
    more.length ? h("div.in", more) : null);
}

/**
 * Return the part of the source line around a problem, and the carets below it after `pad`.
 * @param {import("../types.d.ts").Problem} problem
 */
export function caret({ line, column, excerpt, fix }) {
  if (!line || !excerpt?.trim()) return null;
  const chars = [...excerpt];
  const at = (column ?? 1) - 1;
  const start = chars.length > WIDTH ? Math.max(0, at - WIDTH / 2) : 0;
  const text = chars.slice(start, start + WIDTH).join("");
  if (!column) return { line, text, pad: "", carets: "" };
  const pad = chars.slice(start, at).map((char) => (char === "\t" ? char : WIDE.test(char) ? "\u3000" : " ")).join("");
  const token = fix?.written ?? /^[\w.-]*/.exec(chars.slice(at, start + WIDTH).join(""))?.[0] ?? "";
  return { line, text, pad, carets: "^".repeat(Math.max(1, [...token].length)) };
}
