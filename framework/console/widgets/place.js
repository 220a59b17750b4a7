/** A place in a file, as a link to it. */

import { h } from "../core/dom.js";
import { link } from "../core/route.js";

const PLACE = /^(?<path>[^\s:()]+\.(?:ya?ml|jinja2?|j2|md|txt|py|json))(?::(?<line>\d+))?(?::\d+)?$/;
const INSIDE = /([^\s:(),;]+\.(?:ya?ml|jinja2?|j2|py):\d+)/;

/**
 * Return a link to a place such as `agents.d/support.yaml:17`. Its text leaves the folder out.
 * @param {string} place
 * @returns {HTMLElement}
 */
export function place(place) {
  const { path, line } = PLACE.exec(place)?.groups ?? {};
  if (!path) return h("span.place.mono", place);
  const href = link("config", "files", ...path.split("/"), { line });
  return h("a.place.mono", { href, title: place }, place.replace(/^.*\//, ""));
}

/**
 * Return a text with the places that it names as links.
 * @param {string} text
 * @returns {(string | HTMLElement)[]}
 */
export function withPlaces(text) {
  return text.split(INSIDE).map((piece, i) => (i % 2 ? place(piece) : piece));
}
