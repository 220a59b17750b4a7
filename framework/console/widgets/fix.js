/** Writes the fix of a problem into its file. */

import { get, send } from "../core/api.js";
import { t } from "../core/i18n.js";
import { identity, live, may } from "../core/live.js";
import { toast } from "./toast.js";

const BREAK = /\r\n|[\r\n\x85\u2028\u2029]/g;

/** @typedef {import("../types.d.ts").Problem} Problem */

/** Whether the reader may write files. */
export const mayEdit = () => may("admin") && Boolean(identity.value?.server.allow_edit);

/**
 * Return a function that writes the fix of a problem, or undefined if there is none or the reader may not.
 * @param {Problem} problem
 */
export const fixOf = (problem) => (problem.fix && mayEdit() ? () => void write(problem) : undefined);

/** @param {Problem} problem */
async function write(problem) {
  const path = `/config/files/${problem.path.split("/").map(encodeURIComponent).join("/")}`;
  try {
    const { data, response } = await send("GET", path);
    const text = data.editable ? fixed(data.text, problem) : null;
    if (text === null) throw new Error(data.reason || t("The file has changed since."));
    await send("PUT", path, { body: { text }, headers: { "if-match": response.headers.get("etag") ?? "" } });
    live.value = await get("/config"); // the file may be as before the error: that is no event
  } catch (error) {
    toast({ title: t("The fix was not written."), body: /** @type {Error} */ (error).message, tone: "danger" });
  }
}

/**
 * Return a text with the fix of a problem, or null if the place has another text by now.
 * @param {string} text
 * @param {Problem} problem
 */
export function fixed(text, { line, column, fix }) {
  if (!fix || !line || !column) return null;
  const starts = [0, ...[...text.matchAll(BREAK)].map((match) => match.index + match[0].length)];
  const start = starts[line - 1] ?? text.length;
  const at = start + [...text.slice(start)].slice(0, column - 1).join("").length;
  if (!text.startsWith(fix.written, at)) return null;
  return text.slice(0, at) + fix.instead + text.slice(at + fix.written.length);
}
