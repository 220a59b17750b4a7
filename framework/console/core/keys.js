/** Keyboard shortcuts: single keys, keys with Control, and two keys in a row such as `g c`. */

/** @typedef {{scope: Element | null, keys: Record<string, (event: KeyboardEvent) => void>}} Shortcuts */

/** @type {Set<Shortcuts>} */
const active = new Set();
const SEQUENCE = 3000;
let before = "";
let beforeAt = 0;

/**
 * Add shortcuts until the signal aborts. Single keys are ignored while a field has the focus.
 * @param {Element | null} scope the element that must contain the focus; null: the whole page
 * @param {Record<string, (event: KeyboardEvent) => void>} keys by `KeyboardEvent.key`, letters in lower case: `j`,
 *   `Control+k`, `g c`
 * @param {AbortSignal} signal
 */
export function onKeys(scope, keys, signal) {
  const entry = { scope, keys };
  active.add(entry);
  signal.addEventListener("abort", () => active.delete(entry), { once: true });
}

/** Listen to the keyboard. Call it once. */
export function listenToKeys() {
  addEventListener("keydown", press);
}

/** @param {KeyboardEvent} event */
function press(event) {
  if (event.defaultPrevented || event.isComposing) return;
  const key = event.key.length === 1 ? event.key.toLowerCase() : event.key;
  const control = event.ctrlKey || event.metaKey;
  const name = `${control ? "Control+" : ""}${event.altKey ? "Alt+" : ""}${key}`;
  const target = /** @type {Element | null} */ (event.target instanceof Element ? event.target : null);
  if (!control && !event.altKey && key !== "Escape" && event.composedPath().some(isField)) return;
  const sequence = event.timeStamp - beforeAt < SEQUENCE ? `${before} ${name}` : "";
  before = name;
  beforeAt = event.timeStamp;
  const found = find(sequence, target) ?? find(name, target);
  if (!found) return;
  event.preventDefault();
  before = "";
  found(event);
}

/** @param {string} name @param {Element | null} target */
function find(name, target) {
  // In a dialog or a menu, the shortcuts of the page behind it do not act: Escape closes what is in front.
  const inFront = target?.closest("dialog[open], [popover]") ?? null;
  const fits = (/** @type {Element | null} */ scope) => (scope ? scope.contains(target) : !inFront);
  const fitting = [...active].filter(({ scope, keys }) => keys[name] && fits(scope));
  // The shortcuts of the element with the focus come before those of the page.
  return fitting.sort((a, b) => Number(b.scope !== null) - Number(a.scope !== null)).at(0)?.keys[name];
}

/** @param {EventTarget} target one of those on the way of the event, also within a shadow root */
function isField(target) {
  return target instanceof Element && target.matches("input, textarea, select, [contenteditable]");
}
