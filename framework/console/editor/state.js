/** What is edited: the version that the edit began from, the draft of this window, and what the server says of it. */

import { get, post, send } from "../core/api.js";
import { fileAddress } from "../config/disk.js";
import { live } from "../core/live.js";

/** @typedef {import("../types.d.ts").FileContent} FileContent */
/** @typedef {import("../types.d.ts").CheckedConfig} CheckedConfig */
/** @typedef {import("../types.d.ts").AppliedEdit} AppliedEdit */

const DRAFT = "agentsd.draft.";

/** @param {string} path @returns {Promise<FileContent>} */
export const readFile = (path) => get(fileAddress(path));

/** @param {string} path @returns {{text: string, base: string} | null} */
export function draftOf(path) {
  return JSON.parse(sessionStorage.getItem(DRAFT + path) ?? "null");
}

/**
 * Keep a draft, or forget it.
 * @param {string} path
 * @param {string} base digest of the version that the draft began from
 * @param {string | null} text null: there is none
 */
export function keepDraft(path, base, text) {
  if (text === null) return sessionStorage.removeItem(DRAFT + path);
  try {
    sessionStorage.setItem(DRAFT + path, JSON.stringify({ base, text }));
  } catch {
    // Too large for the window's storage: it is kept only as long as the page is open.
  }
}

/** The files with a draft in this window. */
export const drafts = () =>
  new Set(Object.keys(sessionStorage).filter((key) => key.startsWith(DRAFT)).map((key) => key.slice(DRAFT.length)));

/** @param {string} path @param {string} text @param {AbortSignal} signal @returns {Promise<CheckedConfig>} */
export const checkText = (path, text, signal) => post("/config/check", { files: { [path]: text } }, { signal });

/**
 * Write a text in place of the version with this digest.
 * @param {string} path
 * @param {string} text
 * @param {string} base
 * @returns {Promise<AppliedEdit>}
 */
export async function applyText(path, text, base) {
  const { data } = await send("PUT", fileAddress(path), { body: { text }, headers: { "if-match": `"${base}"` } });
  return data;
}

/** Write a file that does not exist yet. @param {string} path @param {string} text */
export const createFile = (path, text) =>
  send("PUT", fileAddress(path), { body: { text }, headers: { "if-none-match": "*" } });

/**
 * Return the problems of a file, and those of other files that are not known yet: its text causes them. Errors come
 * first, and those of the file.
 * @param {readonly import("../types.d.ts").Problem[]} problems
 * @param {string} path
 */
export function concerning(problems, path) {
  const known = new Set((live.value?.problems ?? []).map((one) => `${one.path}:${one.message}`));
  const found = problems.filter((one) => one.path === path || !known.has(`${one.path}:${one.message}`));
  const rank = (/** @type {import("../types.d.ts").Problem} */ one) =>
    (one.severity === "error" ? 0 : 2) + (one.path === path ? 0 : 1);
  return found.sort((a, b) => rank(a) - rank(b));
}
