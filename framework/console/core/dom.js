/** Builds elements. Text becomes text nodes, so no text can become markup. */

/** @typedef {string | number | Node | null | undefined | false} Child */
/** @typedef {Child | readonly Children[]} Children */
/** @typedef {Record<string, any>} Props */

const SVG = "http://www.w3.org/2000/svg";
const SAFE_ADDRESS = /^(#|\/(?!\/)|https?:|mailto:|blob:)/i;
const PROPERTIES = new Set(["value", "checked", "selected", "indeterminate"]);

/**
 * @typedef {{
 *   <K extends keyof HTMLElementTagNameMap>(spec: K, ...rest: (Props | Children)[]): HTMLElementTagNameMap[K],
 *   (spec: string, ...rest: (Props | Children)[]): HTMLElement,
 * }} CreateElement
 */

/**
 * Create an HTML element from a tag with classes and an id, such as `button.btn.primary#send`, then optionally its
 * properties as an object, and its children.
 */
export const h = /** @type {CreateElement} */ (
  (/** @type {string} */ spec, /** @type {any[]} */ ...rest) => {
    const { tag, classes, id } = parseSpec(spec);
    return finish(document.createElement(tag), classes, id, rest);
  }
);

/**
 * Create an SVG element, likewise.
 * @param {string} spec
 * @param {(Props | Children)[]} rest
 * @returns {SVGElement}
 */
export function svg(spec, ...rest) {
  const { tag, classes, id } = parseSpec(spec);
  return finish(document.createElementNS(SVG, tag), classes, id, rest);
}

/**
 * Replace the children of a node.
 * @param {Element | DocumentFragment} node
 * @param {Children[]} children
 */
export function fill(node, ...children) {
  node.replaceChildren(...flatten(children));
}

/**
 * Reconcile children in place: nodes of items that stay are kept, with their focus and scroll position.
 * @template T
 * @param {Element} parent contains only nodes that this function created
 * @param {readonly T[]} items
 * @param {(item: T) => string | number} key
 * @param {(item: T) => Element} create
 * @param {(node: any, item: T) => void} [update] called for every item, new ones included
 */
export function keyed(parent, items, key, create, update) {
  const known = nodesByKey(parent);
  const kept = new Set(items.map((item) => String(key(item))));
  for (const [name, node] of known) if (!kept.has(name)) node.remove();
  let next = parent.firstElementChild;
  for (const item of items) {
    const name = String(key(item));
    const node = known.get(name) ?? create(item);
    KEYS.set(node, name);
    if (node === next) next = next.nextElementSibling;
    else parent.insertBefore(node, next);
    update?.(node, item);
  }
}

/** @type {WeakMap<Element, string>} */
const KEYS = new WeakMap();

/** @param {Element} parent */
function nodesByKey(parent) {
  /** @type {Map<string, Element>} */
  const found = new Map();
  for (const node of parent.children) found.set(KEYS.get(node) ?? "", node);
  return found;
}

/** @param {string} spec */
function parseSpec(spec) {
  const [, tag = "div", rest = ""] = /^([\w-]*)(.*)$/.exec(spec) ?? [];
  const classes = [...rest.matchAll(/\.([\w-]+)/g)].map((match) => match[1]);
  return { tag: tag || "div", classes, id: /#([\w-]+)/.exec(rest)?.[1] };
}

/**
 * @template {Element} E
 * @param {E} element
 * @param {string[]} classes
 * @param {string | undefined} id
 * @param {any[]} rest
 */
function finish(element, classes, id, rest) {
  if (id) element.id = id;
  if (element instanceof HTMLButtonElement) element.type = "button"; // without this, it submits the form around it
  element.classList.add(...classes);
  const props = isProps(rest[0]) ? rest.shift() : {};
  element.append(...flatten(rest));
  for (const [name, value] of Object.entries(props)) setProp(element, name, value);
  return element;
}

/** @param {any} value */
function isProps(value) {
  return value !== null && typeof value === "object" && !(value instanceof Node) && !Array.isArray(value);
}

/**
 * @param {Element} element
 * @param {string} name
 * @param {any} value
 */
function setProp(element, name, value) {
  if (value === false || value === null || value === undefined) return;
  if (typeof value === "function" && name.startsWith("on")) element.addEventListener(name.slice(2), value);
  else if (name === "class") element.classList.add(...String(value).split(" ").filter(Boolean));
  else if (name === "css") setCss(/** @type {HTMLElement} */ (element), value);
  else if (PROPERTIES.has(name)) /** @type {any} */ (element)[name] = value;
  else if (name === "href" && !SAFE_ADDRESS.test(String(value))) return;
  else element.setAttribute(name, value === true ? "" : String(value));
}

/**
 * @param {HTMLElement} element
 * @param {Record<string, string | number>} values
 */
function setCss(element, values) {
  for (const [name, value] of Object.entries(values)) element.style.setProperty(name, String(value));
}

/**
 * @param {any[]} children
 * @returns {(Node | string)[]}
 */
function flatten(children) {
  return children
    .flat(Infinity)
    .filter((child) => child !== null && child !== undefined && child !== false)
    .map((child) => (child instanceof Node ? child : String(child)));
}
