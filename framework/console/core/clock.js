/** The server's clock: times that are left until a decision expires are counted from it. */

let offset = 0;
let measured = false;

/** Return the server's time in milliseconds since the epoch. */
export function now() {
  return Date.now() + offset;
}

/**
 * Learn the offset of the server's clock from a response. `Date` has whole seconds, so half a second is added, and
 * differences of less than two seconds, which delays explain, change nothing.
 * @param {Headers} headers
 */
export function learn(headers) {
  const date = Date.parse(headers.get("date") ?? "");
  if (Number.isNaN(date)) return;
  const found = date + 500 - Date.now();
  if (!measured || Math.abs(found - offset) > 2000) offset = Math.abs(found) > 1500 ? found : 0;
  measured = true;
}
