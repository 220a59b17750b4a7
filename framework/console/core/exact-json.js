/** JSON whose numbers keep their text: 9007199254740993, 1.0 and -0 are sent back as they came. */

const json = /** @type {{rawJSON?: (text: string) => unknown, isRawJSON?: (value: unknown) => boolean}} */ (JSON);

/**
 * Parse JSON. A number that JavaScript would write in another way becomes a token that `JSON.stringify` writes as it
 * was.
 * @param {string} text
 * @returns {any}
 */
export function parseExact(text) {
  /** @type {(key: string, value: any, context?: {source?: string}) => any} */
  const keep = (_, value, context) => (typeof value === "number" ? exactNumber(context?.source, value) : value);
  return JSON.parse(text, /** @type {any} */ (keep));
}

/**
 * Return a number as JSON writes it.
 * @param {string | undefined} text in JSON's grammar
 * @param {number} [value]
 */
export function exactNumber(text, value = Number(text)) {
  return text === undefined || text === String(value) || !json.rawJSON ? value : json.rawJSON(text);
}

/** @param {unknown} value */
export const isNumber = (value) => typeof value === "number" || json.isRawJSON?.(value) === true;

/** @param {unknown} a @param {unknown} b whether both are the same JSON */
export const sameJson = (a, b) => JSON.stringify(a) === JSON.stringify(b);
