/** The place in the console, as the address after `#`: `#/runs/run_1?tab=events`. */

import { signal } from "./signal.js";

/** @typedef {{page: string, parts: string[], query: URLSearchParams}} Route */

/** The present place. */
export const route = signal(parse(globalThis.location?.hash ?? ""));

/** Follow the address of the window from now on. */
export function followAddress() {
  addEventListener("hashchange", () => (route.value = parse(location.hash)));
}

/**
 * Return the place that an address names. Without one it is the chat.
 * @param {string} hash
 * @returns {Route}
 */
export function parse(hash) {
  const [path, search = ""] = hash.replace(/^#?\/?/, "").split(/\?(.*)/s);
  const [page, ...parts] = path.split("/").map(decode);
  return { page: page || "chat", parts, query: new URLSearchParams(search) };
}

/**
 * Return the address of a place: parts of the path, then optionally the query as an object. Empty values are left out.
 * @param {...(string | number | Record<string, any>)} parts
 */
export function link(...parts) {
  const last = parts.at(-1);
  const query = Object.entries(/** @type {Record<string, any>} */ (typeof last === "object" ? parts.pop() : {}));
  const text = new URLSearchParams(query.filter(([, value]) => ![null, undefined, ""].includes(value))).toString();
  return `#/${parts.map((part) => encodeURIComponent(String(part))).join("/")}${text ? `?${text}` : ""}`;
}

/**
 * Go to a place.
 * @param {string} hash an address, as `link` returns it
 * @param {{replace?: boolean}} [options] replace: without a new entry in the window's history
 */
export function go(hash, { replace = false } = {}) {
  if (hash === location.hash) return;
  history[replace ? "replaceState" : "pushState"](null, "", hash);
  route.value = parse(hash);
}

/** @param {string} text */
function decode(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}
