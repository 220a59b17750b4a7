/** Colours of code, by highlight.js. */

import bash from "highlight.js/lib/languages/bash";
import diff from "highlight.js/lib/languages/diff";
import go from "highlight.js/lib/languages/go";
import ini from "highlight.js/lib/languages/ini";
import java from "highlight.js/lib/languages/java";
import javascript from "highlight.js/lib/languages/javascript";
import json from "highlight.js/lib/languages/json";
import markdown from "highlight.js/lib/languages/markdown";
import python from "highlight.js/lib/languages/python";
import rust from "highlight.js/lib/languages/rust";
import sql from "highlight.js/lib/languages/sql";
import typescript from "highlight.js/lib/languages/typescript";
import xml from "highlight.js/lib/languages/xml";
import yaml from "highlight.js/lib/languages/yaml";
import { createLowlight } from "lowlight";
import { h } from "../core/dom.js";
import { visible } from "../widgets/text.js";

/** Characters of code that get colours. */
const LONGEST = 20_000;
const LANGUAGES = {
  bash, diff, go, ini, java, javascript, json, markdown, python, rust, sql, typescript, xml, yaml,
};
/** @type {Record<string, string>} classes of the page's colours, and the parts of code that have them */
const CLASSES = {
  cc: "comment meta quote",
  ck: "attr attribute built_in keyword name property section selector-class selector-tag title",
  cn: "literal number symbol type",
  cp: "bullet punctuation tag",
  cs: "regexp string",
  "k-danger ink": "deletion",
  "k-ok ink": "addition",
};
const KINDS = new Map(Object.entries(CLASSES).flatMap(([name, parts]) => parts.split(" ").map((part) => [part, name])));
const lowlight = createLowlight(LANGUAGES);

/**
 * Return code with its colours; null in a language that is not known, or if it is too long.
 * @param {string} code
 * @param {string} language such as `py`
 * @returns {Node[] | null}
 */
export function coloured(code, language) {
  const name = language.toLowerCase();
  if (!lowlight.registered(name) || code.length > LONGEST) return null;
  return lowlight.highlight(name, code).children.map(nodeOf);
}

/** @param {any} part an element with parts, or a text @returns {Node} */
function nodeOf({ properties, children, value = "" }) {
  if (!children) return visible(value);
  const [, kind = ""] = /^hljs-(.+)$/.exec(properties.className[0]) ?? [];
  return h("span", { class: KINDS.get(kind) ?? "" }, children.map(nodeOf));
}
