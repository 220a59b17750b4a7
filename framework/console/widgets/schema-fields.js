/** Fields of a form for a JSON Schema. Values that nobody touches stay exactly as they are. */

import { exactNumber, isNumber, parseExact, sameJson } from "../core/exact-json.js";
import { t } from "../core/i18n.js";

const NUMBER = /^-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?$/;
const MOST_PARTS = 12;
const WHOLE = /^-?(0|[1-9]\d*)$/;

/** @typedef {Record<string, any>} Schema */
/**
 * @typedef {object} Field
 * @property {string[]} path one name, or two for a part of an object
 * @property {"text" | "number" | "choice" | "list" | "json" | "const"} kind
 * @property {Schema} schema
 * @property {boolean} required
 * @property {boolean} nullable
 * @property {any} value undefined if it is missing
 * @property {string} text the value as the field shows it
 * @property {any[]} options of a choice; undefined leaves the value out
 */
/** @typedef {{value?: any, problem?: string}} Read a value, undefined to leave it out, or why there is none */

/**
 * Return the fields for a value: those of the schema, then what the schema does not know.
 * @param {Schema} schema of an object
 * @param {Record<string, any>} value
 * @returns {Field[]}
 */
export function fieldsOf(schema, value) {
  return partsOf([], resolve(schema, schema).schema, value, schema).flatMap((field) => {
    const { kind, path, schema: inner, value: part } = field;
    if (kind !== "json" || !inner.properties || !isObject(part)) return [field];
    const parts = partsOf(path, inner, part, schema);
    return parts.length > MOST_PARTS ? [field] : parts;
  });
}

/**
 * Return a value with the changes of some of its fields.
 * @param {Record<string, any>} value
 * @param {Map<Field, any>} changes undefined leaves the value out
 * @returns {Record<string, any>}
 */
export function withChanges(value, changes) {
  let result = value;
  for (const [{ path }, changed] of changes) result = withPart(result, path, changed);
  return result;
}

/**
 * Read what was typed into a field.
 * @param {Field} field
 * @param {string} text
 * @returns {Read}
 */
export function readField(field, text) {
  const { kind, schema, nullable, required } = field;
  if (kind === "choice") return { value: field.options[Number(text)] };
  if (text === "" && nullable) return { value: null };
  if (kind === "text") return checked(schema, text);
  if (kind === "list") return checked(schema, text === "" ? [] : text.split("\n"));
  if (text.trim() === "") return required ? { problem: t("a value is needed") } : { value: undefined };
  if (kind === "number") return number(schema, text.trim());
  try {
    return { value: parseExact(text) };
  } catch (error) {
    return { problem: t("not valid JSON: {error}", { error: /** @type {Error} */ (error).message }) };
  }
}

/**
 * @param {string[]} path
 * @param {Schema} schema
 * @param {Record<string, any>} value
 * @param {Schema} root
 */
function partsOf(path, { properties = {}, required = [] }, value, root) {
  const names = new Set([...Object.keys(properties), ...Object.keys(value)]);
  return [...names].map((name) =>
    fieldOf([...path, name], own(properties, name), own(value, name), required.includes(name), root),
  );
}

/**
 * @param {string[]} path
 * @param {Schema | undefined} given
 * @param {any} value
 * @param {boolean} required
 * @param {Schema} root
 * @returns {Field}
 */
function fieldOf(path, given, value, required, root) {
  const { schema, nullable } = resolve(given ?? {}, root);
  const options = choices(schema, nullable, required, value);
  const kind = kindOf(schema, nullable, value, options, root);
  const text = kind === "choice" ? String(options?.findIndex((one) => sameJson(one, value))) : shown(kind, value);
  return { path, kind, schema, required, nullable, value, text, options: options ?? [] };
}

/**
 * @param {Schema} schema
 * @param {boolean} nullable
 * @param {any} value
 * @param {any[] | null} options
 * @param {Schema} root
 */
function kindOf(schema, nullable, value, options, root) {
  if (schema.const !== undefined) return sameJson(schema.const, value) ? "const" : "json";
  if (options) return options.some((one) => sameJson(one, value)) ? "choice" : "json";
  const empty = value === undefined || (value === null && nullable);
  const type = schema.type ?? (typeof value === "string" ? "string" : isNumber(value) ? "number" : "");
  if (type === "string" && (empty || typeof value === "string")) return "text";
  if ((type === "number" || type === "integer") && (empty || isNumber(value))) return "number";
  if (type === "array" && isLines(schema, value, empty, root)) return "list";
  return "json";
}

/** @param {Schema} schema @param {any} value @param {boolean} empty @param {Schema} root */
function isLines(schema, value, empty, root) {
  const items = resolve(schema.items ?? {}, root).schema;
  if (items.type !== "string" || items.enum) return false;
  if (empty) return true;
  // A list with one empty line would be read as an empty list.
  const fits = (/** @type {any} */ item) => typeof item === "string" && !/[\r\n]/.test(item);
  return Array.isArray(value) && value.every(fits) && !(value.length === 1 && value[0] === "");
}

/** @param {Schema} schema @param {boolean} nullable @param {boolean} required @param {any} value */
function choices(schema, nullable, required, value) {
  const listed = schema.type === "boolean" ? [true, false] : schema.enum;
  if (!Array.isArray(listed)) return null;
  const more = nullable && !listed.includes(null) ? [null] : [];
  return [...(required && value !== undefined ? [] : [undefined]), ...listed, ...more];
}

/** @param {string} kind @param {any} value */
function shown(kind, value) {
  if (value === undefined || (value === null && kind !== "json" && kind !== "const")) return "";
  if (kind === "text") return value;
  if (kind === "list") return value.join("\n");
  return JSON.stringify(value, null, kind === "json" ? 2 : 0);
}

/**
 * Follow references, and take the null out of `anyOf: [X, null]` and `type: [X, null]`.
 * @param {Schema} given
 * @param {Schema} root
 * @returns {{schema: Schema, nullable: boolean}}
 */
function resolve(given, root, depth = 8) {
  let schema = isObject(given) ? given : {};
  const name = /^#\/(?:\$defs|definitions)\/(.+)$/.exec(schema.$ref ?? "")?.[1];
  if (name && depth) {
    const { $ref: _, ...beside } = schema;
    const found = resolve(own(root.$defs ?? root.definitions ?? {}, name) ?? {}, root, depth - 1);
    return { schema: { ...found.schema, ...beside }, nullable: found.nullable };
  }
  const { anyOf, oneOf, allOf, ...rest } = schema;
  const several = anyOf ?? oneOf ?? allOf;
  if (Array.isArray(several) && depth) {
    const parts = several.filter((one) => one?.type !== "null");
    if (parts.length !== 1) return { schema: { description: rest.description }, nullable: false };
    const found = resolve(parts[0], root, depth - 1);
    return { schema: { ...found.schema, ...rest }, nullable: found.nullable || parts.length < several.length };
  }
  if (!Array.isArray(schema.type)) return { schema, nullable: false };
  const types = schema.type.filter((/** @type {string} */ one) => one !== "null");
  schema = { ...schema, type: types.length === 1 ? types[0] : undefined };
  return { schema, nullable: types.length === 1 && types.length < given.type.length };
}

/** @param {Schema} schema @param {string} text @returns {Read} */
function number(schema, text) {
  const integer = schema.type === "integer";
  if (!(integer ? WHOLE : NUMBER).test(text)) {
    return { problem: integer ? t("not a whole number") : t("not a number, such as 12.5") };
  }
  // A number that needs its text keeps it: 9007199254740993.
  const value = Number(text);
  return checked(schema, integer && !Number.isSafeInteger(value) ? exactNumber(text) : value);
}

/** @param {Schema} schema @param {any} value @returns {Read} */
function checked(schema, value) {
  const [least, most] = Array.isArray(value) ? ["minItems", "maxItems"] : ["minLength", "maxLength"];
  const sized = typeof value === "string" ? [...value].length : value.length;
  const n = sized ?? Number(JSON.stringify(value));
  /** @type {[string, (limit: number) => boolean, string][]} */
  const limits = [
    [sized === undefined ? "minimum" : least, (limit) => n < limit, t("at least {n}")],
    [sized === undefined ? "maximum" : most, (limit) => n > limit, t("at most {n}")],
    ["exclusiveMinimum", (limit) => n <= limit, t("more than {n}")],
    ["exclusiveMaximum", (limit) => n >= limit, t("less than {n}")],
  ];
  for (const [key, breaks, text] of limits) {
    if (schema[key] !== undefined && breaks(schema[key])) return { problem: text.replace("{n}", schema[key]) };
  }
  if (typeof value !== "string" || matches(schema.pattern, value)) return { value };
  return { problem: t("must match {pattern}", { pattern: schema.pattern }) };
}

/** @param {string | undefined} pattern @param {string} text a pattern in another dialect is left to the server */
function matches(pattern, text) {
  try {
    return pattern === undefined || new RegExp(pattern, "u").test(text);
  } catch {
    return true;
  }
}

/** @param {any} whole @param {string[]} path @param {any} part @returns {any} */
function withPart(whole, [name, ...rest], part) {
  const changed = rest.length ? withPart(own(whole, name) ?? {}, rest, part) : part;
  const entries = Object.entries(whole ?? {}).filter(([key]) => key !== name || changed !== undefined);
  const replaced = entries.map(([key, value]) => [key, key === name ? changed : value]);
  if (changed !== undefined && !Object.hasOwn(whole ?? {}, name)) replaced.push([name, changed]);
  return Object.fromEntries(replaced);
}

/** @param {any} object @param {string} name a property of the object itself */
const own = (object, name) => (Object.hasOwn(object, name) ? object[name] : undefined);
/** @param {any} value */
const isObject = (value) => typeof value === "object" && value !== null && !Array.isArray(value) && !isNumber(value);
