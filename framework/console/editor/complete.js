/** What could be written at a place: keys and values of the JSON Schema, or variables of a template. */

import { written } from "./edits.js";
import { childrenOf, cursorAt, unquote } from "./yaml.js";

/** @typedef {{label: string, insert: string, about: string, detail: string}} Option */
/** @typedef {{from: number, to: number, word: string, options: Option[]}} Completion */
/** @typedef {Record<string, any>} Schema */

const FILTERS = ["default", "join", "length", "lower", "replace", "title", "tojson", "trim", "truncate", "upper"];

/**
 * Return the completion of a file at an offset.
 * @param {import("../types.d.ts").FileContent} file
 * @param {string} text
 * @param {number} offset
 * @param {Schema} schema of agent files
 */
export const completeFile = ({ kind, variables }, text, offset, schema) =>
  kind === "template" ? completeTemplate(text, offset, variables)
    : completeYaml(text, offset, kind === "agent" ? schema : {});

/**
 * Return the completion of an agent file at an offset.
 * @param {string} text
 * @param {number} offset
 * @param {Schema} schema
 * @returns {Completion}
 */
export function completeYaml(text, offset, schema) {
  const { path, at, from } = cursorAt(text, offset);
  const begun = text.slice(from, offset);
  const isFlow = /[{[]/.test(text.slice(text.lastIndexOf("\n", offset - 1) + 1, offset));
  const nodes = resolve(schema, path);
  const keys = at === "key" || path.at(-1) === "*" ? nodes.flatMap((node) => keysOf(schema, node)) : [];
  const values = at === "value" || path.at(-1) === "*" ? nodes.flatMap((node) => valuesOf(schema, node)) : [];
  const taken = at === "key" ? siblings(text, path, offset) : new Set();
  const options = [...values, ...(isFlow && path.at(-1) === "*" ? [] : keys.filter(({ label }) => !taken.has(label)))];
  return { from, to: offset, word: unquote(begun), options: matching(options, begun.replace(/^["']/, "")) };
}

/**
 * Return the completion of a template at an offset.
 * @param {string} text
 * @param {number} offset
 * @param {readonly {name: string, description: string, agents: string[]}[]} variables
 * @returns {Completion}
 */
export function completeTemplate(text, offset, variables) {
  const before = text.slice(0, offset);
  const [begun] = /** @type {RegExpExecArray} */ (/[\w]*$/.exec(before));
  const from = offset - begun.length;
  const tag = Math.max(before.lastIndexOf("{{"), before.lastIndexOf("{%"));
  const isInside = tag >= 0 && tag > Math.max(before.lastIndexOf("}}"), before.lastIndexOf("%}"));
  if (!isInside || /\.\s*$/.test(text.slice(tag, from))) return { from, to: offset, word: begun, options: [] };
  const options = /\|\s*$/.test(text.slice(tag, from))
    ? FILTERS.map((name) => option(name, name, "", ""))
    : variables.map(({ name, description, agents }) => option(name, name, description, agents.join(", ")));
  return { from, to: offset, word: begun, options: matching(options, begun) };
}

/** @param {readonly Option[]} options @param {string} word */
function matching(options, word) {
  const wanted = word.toLowerCase();
  const rank = (/** @type {Option} */ { label }) => {
    const at = label.toLowerCase().indexOf(wanted);
    return at < 0 ? 9 : at === 0 ? 0 : /[._/]/.test(label[at - 1]) ? 1 : 2;
  };
  const unique = [...new Map(options.map((one) => [one.label, one])).values()];
  return unique.filter((one) => rank(one) < 9 && one.label !== word).sort((a, b) => rank(a) - rank(b));
}

/** @param {string} label @param {string} insert @param {string} about @param {string} detail @returns {Option} */
const option = (label, insert, about, detail) => ({ label, insert, about, detail });

/**
 * Return the schemas of the value at a path.
 * @param {Schema} schema
 * @param {readonly string[]} path
 */
export function resolve(schema, path) {
  let nodes = alternatives(schema, schema);
  for (const key of path) {
    nodes = nodes
      .map((node) => (key === "*" ? node.items : (node.properties?.[key] ?? node.additionalProperties)))
      .filter((node) => node && typeof node === "object")
      .flatMap((node) => alternatives(schema, node));
  }
  return nodes;
}

/** @param {Schema} root @param {Schema} node @returns {Schema[]} */
function alternatives(root, node) {
  const name = node.$ref?.split("/").at(-1);
  const target = name ? { ...root.$defs[name], ...node, $ref: undefined } : node;
  const inner = [...(target.anyOf ?? []), ...(target.oneOf ?? []), ...(target.allOf ?? [])];
  return [target, ...inner.flatMap((one) => alternatives(root, one))];
}

/** @param {Schema} root @param {Schema} node */
function keysOf(root, node) {
  const shown = Object.entries(node.properties ?? {}).filter(([, value]) => !value.doNotSuggest);
  return shown.map(([name, value]) => {
    const all = alternatives(root, /** @type {Schema} */ (value));
    const types = [...new Set(all.flatMap(({ type }) => type ?? []))].filter((type) => type !== "null");
    const [first] = all.filter(({ description }) => description);
    return option(name, `${name}: `, first?.description ?? "", types.join(", "));
  });
}

/** @param {Schema} root @param {Schema} node */
function valuesOf(root, node) {
  const texts = node.enum ?? (node.const === undefined ? [] : [node.const]);
  const found = texts.map((/** @type {any} */ value, /** @type {number} */ i) => {
    const text = typeof value === "string" ? written(value) : String(value);
    return option(String(value), text, node.enumDescriptions?.[i] ?? "", "");
  });
  const flags = [node.type].flat().includes("boolean") ? ["true", "false"] : [];
  return [...found, ...flags.map((flag) => option(flag, flag, node.description ?? "", ""))];
}

/**
 * Return the keys that are written already beside the one at an offset.
 * @param {string} text
 * @param {readonly string[]} path
 * @param {number} offset
 */
function siblings(text, path, offset) {
  if (path.includes("*")) return new Set();
  const end = text.indexOf("\n", offset);
  const others = text.slice(0, text.lastIndexOf("\n", offset - 1) + 1) + (end < 0 ? "" : text.slice(end + 1));
  return new Set(childrenOf(others, path).map((entry) => entry.path.at(-1)));
}
