/** A form for a JSON Schema, whose untouched values stay exactly as they are. */

import { fill, h } from "../core/dom.js";
import { t } from "../core/i18n.js";
import { fieldsOf, readField, withChanges } from "./schema-fields.js";
import { visible } from "./text.js";

const LONG = 80;
let forms = 0;

/** @typedef {import("./schema-fields.js").Field} Field */
/** @typedef {HTMLInputElement | HTMLTextAreaElement | HTMLSelectElement} Control */
/**
 * @typedef {object} SchemaForm
 * @property {HTMLElement} element
 * @property {() => Record<string, any>} value the value with the changes that are valid
 * @property {() => string[]} problems one line each
 * @property {() => number} changes how many fields differ
 * @property {() => void} onChange called after each change; assign it
 */

/**
 * Return a form.
 * @param {Record<string, any>} schema of an object
 * @param {Record<string, any>} value what it shows, from `parseExact`
 * @returns {SchemaForm}
 */
export function schemaForm(schema, value) {
  const prefix = `f${(forms += 1)}`;
  /** @type {Map<Field, any>} */
  const changes = new Map();
  /** @type {Map<Field, string>} */
  const problems = new Map();
  const element = h("div.form");
  /** @type {SchemaForm} */
  const form = {
    element,
    value: () => withChanges(value, changes),
    problems: () => [...problems].map(([field, text]) => `${field.path.join(".")}: ${text}`),
    changes: () => changes.size + problems.size,
    onChange: () => {},
  };
  for (const [i, field] of fieldsOf(schema, value).entries()) {
    const id = `${prefix}-${i}`;
    const label = h("label.mono", { for: id }, visible(field.path.join(".")));
    element.append(label, row(field, id, (/** @type {string | null} */ text) => {
      changes.delete(field);
      problems.delete(field);
      const read = text === null ? null : readField(field, text);
      if (read?.problem) problems.set(field, read.problem);
      else if (read) changes.set(field, read.value);
      form.onChange();
      return read?.problem ?? "";
    }));
  }
  return form;
}

/**
 * @param {Field} field
 * @param {string} id
 * @param {(text: string | null) => string} change takes the text, or null if it is as it was; returns what is wrong
 */
function row(field, id, change) {
  const input = control(field, id);
  const before = input.value; // as the browser keeps it: with other line ends, perhaps
  const was = h("span.was.cut");
  const problem = h("p.problem.small", { role: "alert" });
  const hint = h("p.hint", { id: `${id}-h` }, [...hints(field)].join(" · "));
  const note = typeof field.value === "string" ? unseen(field.value) : null;
  const node = h("div", h("div.field-row", input, was), problem, hint.textContent ? hint : null, note);
  if (hint.textContent) input.setAttribute("aria-describedby", hint.id);
  input.addEventListener("input", () => {
    const touched = input.value !== before;
    const wrong = change(touched ? input.value : null);
    node.classList.toggle("changed", touched);
    const shown = field.value === undefined ? null : [t("was"), " ", h("s", visible(short(field.value)))];
    fill(was, touched ? shown : null);
    fill(problem, wrong);
    input.setAttribute("aria-invalid", String(Boolean(wrong)));
  });
  return node;
}

/** @param {Field} field @param {string} id @returns {Control} */
function control({ kind, text, options, path, required }, id) {
  const mono = kind === "text" || kind === "list" ? "" : "mono";
  const named = { id, name: path.join("."), class: `input ${mono}`, "aria-required": required || null };
  const props = { ...named, spellcheck: "false", autocomplete: "off" };
  if (kind === "choice") {
    const shown = options.map((one) => (one === undefined ? "–" : typeof one === "string" ? one : JSON.stringify(one)));
    const chosen = Number(text);
    return h("select", props, shown.map((one, i) => h("option", { value: String(i), selected: i === chosen }, one)));
  }
  const isLong = kind === "list" || kind === "json" || text.length > LONG || /[\r\n]/.test(text);
  if (!isLong || kind === "const") {
    const inputmode = kind === "number" ? "decimal" : null;
    return h("input", { ...props, value: text, inputmode, readonly: kind === "const" });
  }
  const rows = String(Math.min(12, Math.max(2, text.split("\n").length)));
  return h("textarea", { ...props, rows, value: text });
}

/** @param {Field} field */
function* hints({ kind, schema, nullable, value }) {
  if (kind === "number") yield schema.type === "integer" ? t("whole number") : t("number");
  if (kind === "list") yield t("one a line");
  if (kind === "json") yield "JSON";
  if (schema.exclusiveMinimum !== undefined) yield t("more than {n}", { n: schema.exclusiveMinimum });
  if (schema.minimum !== undefined) yield t("at least {n}", { n: schema.minimum });
  if (schema.maximum !== undefined) yield t("at most {n}", { n: schema.maximum });
  if (schema.unit ?? schema["x-unit"]) yield String(schema.unit ?? schema["x-unit"]);
  if (nullable && kind !== "choice") yield t("empty: null");
  const unset = JSON.stringify(schema.default);
  if (value === undefined && unset) yield t("without it: {value}", { value: unset });
  if (typeof schema.description === "string") yield schema.description;
}

/** @param {string} text characters that a field does not show, in a line below it */
function unseen(text) {
  const shown = h("p.hint.mono", visible(text));
  return shown.querySelector(".hid") ? shown : null;
}

/** @param {any} value */
function short(value) {
  const text = typeof value === "string" ? value : JSON.stringify(value);
  return text.length > 40 ? `${text.slice(0, 40)}…` : text;
}
