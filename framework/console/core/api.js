/** Requests to the server's API, with the key in a header. */

import { learn } from "./clock.js";
import { signal } from "./signal.js";

const KEY = "agentsd.key";
/** What is stored, except the language and the theme. */
const PERSONAL = /^agentsd\.(?!language|theme)/;
const TIMEOUT = 30_000;
const JSON_BODY = { "content-type": "application/json" };

/** @typedef {Record<string, string | number | boolean | null | undefined | readonly (string | number)[]>} Query */
/**
 * @typedef {object} Options
 * @property {Query} [query]
 * @property {unknown} [body]
 * @property {Record<string, string>} [headers]
 * @property {AbortSignal} [signal]
 * @property {boolean} [cookies] whether the browser keeps cookies of the response
 */

/** The key that requests carry, or null. */
export const apiKey = signal(storedKey());
/** Whether the server accepts the key. */
export const access = signal(/** @type {"open" | "key needed" | "revoked"} */ ("open"));
/** Whether the server responds. */
export const connection = signal(/** @type {"up" | "lost"} */ ("up"));

/** The other tabs of this server; none outside of a browser. */
const tabs = globalThis.document ? new BroadcastChannel("agentsd") : null;
tabs?.addEventListener("message", () => (forgetHere(), location.reload()));

/** A response that is an error, or no response at all (status 0). */
export class ApiError extends Error {
  /**
   * @param {number} status
   * @param {{code?: string, message?: string, param?: string | null, problems?: any[]}} error
   * @param {string} [runId]
   */
  constructor(status, error, runId) {
    super(error.message ?? `HTTP ${status}`);
    this.status = status;
    this.code = error.code ?? "";
    this.param = error.param ?? null;
    this.problems = error.problems ?? [];
    this.runId = runId;
  }
}

/**
 * Use another key from now on.
 * @param {string} key
 * @param {boolean} remember also in later windows of this browser
 */
export function useKey(key, remember) {
  sessionStorage.setItem(KEY, key);
  if (remember) localStorage.setItem(KEY, key);
  else localStorage.removeItem(KEY);
  apiKey.value = key;
  access.value = "open";
}

/** Forget the key in all tabs of this browser, with everything that was stored but the language and the theme. */
export function forgetKey() {
  forgetHere();
  tabs?.postMessage("signed out");
}

function forgetHere() {
  for (const storage of [sessionStorage, localStorage]) {
    for (const name of Object.keys(storage)) if (PERSONAL.test(name)) storage.removeItem(name);
  }
  apiKey.value = null;
}

/**
 * Template tag: return a path whose values are encoded. Ids are texts of other programs, such as `a#b` or `a/b`.
 * @param {TemplateStringsArray} texts
 * @param {...any} values
 */
export const apiPath = (texts, ...values) => String.raw(texts, ...values.map(encodeURIComponent));

/**
 * Send a request to a path below `/agent`.
 * @param {string} method
 * @param {string} path
 * @param {Options} [options]
 * @returns {Promise<{data: any, response: Response}>}
 */
export async function send(method, path, { query, body, headers, signal: stop, cookies } = {}) {
  const limit = AbortSignal.timeout(TIMEOUT);
  const response = await open(address(path, query), {
    method,
    headers: { accept: "application/json", ...(body === undefined ? {} : JSON_BODY), ...headers },
    body: body === undefined ? undefined : JSON.stringify(body),
    signal: stop ? AbortSignal.any([stop, limit]) : limit,
    credentials: cookies ? "same-origin" : "omit",
  });
  const data = await readJson(response);
  if (!response.ok) throw new ApiError(response.status, data?.error ?? {}, data?.run_id);
  return { data, response };
}

/** @param {string} path @param {Query} [query] @param {Omit<Options, "query">} [options] */
export const get = async (path, query, options) => (await send("GET", path, { ...options, query })).data;
/** @param {string} path @param {unknown} [body] @param {Omit<Options, "body">} [options] */
export const post = async (path, body, options) => (await send("POST", path, { ...options, body })).data;
/** @param {string} path @param {unknown} [body] @param {Omit<Options, "body">} [options] */
export const put = async (path, body, options) => (await send("PUT", path, { ...options, body })).data;
/** @param {string} path @param {Options} [options] */
export const del = async (path, options) => (await send("DELETE", path, options)).data;

/**
 * Send a request with the key, and keep `access`, `connection` and the clock up to date.
 * @param {string} url
 * @param {RequestInit} init
 * @returns {Promise<Response>}
 * @throws {ApiError} with the status 0 if there is no response
 */
export async function open(url, init) {
  const key = apiKey.value;
  const headers = { ...init.headers, ...(key ? { authorization: `Bearer ${key}` } : {}) };
  const response = await fetch(url, { credentials: "omit", ...init, headers, cache: "no-store" }).catch((error) => {
    if (init.signal?.aborted && init.signal.reason?.name !== "TimeoutError") throw error;
    connection.value = "lost";
    throw new ApiError(0, { code: "no_connection", message: "the server does not respond" });
  });
  connection.value = "up";
  learn(response.headers);
  if (response.status === 401 && key === apiKey.value) access.value = key ? "revoked" : "key needed";
  return response;
}

/**
 * Return the address of a path below `/agent`. A list becomes repeated parameters; empty values are left out.
 * @param {string} path
 * @param {Query} [query]
 */
export function address(path, query = {}) {
  const search = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) {
    const values = Array.isArray(value) ? value : [value];
    for (const item of values) if (![null, undefined, ""].includes(item)) search.append(name, String(item));
  }
  const text = search.toString();
  return `/agent${path}${text ? `?${text}` : ""}`;
}

/** @param {Response} response */
async function readJson(response) {
  if (response.status === 204) return null;
  try {
    return await response.json();
  } catch {
    if (response.ok) throw new ApiError(response.status, { message: "the server's response is not JSON" });
    return null;
  }
}

function storedKey() {
  return globalThis.sessionStorage?.getItem(KEY) ?? globalThis.localStorage?.getItem(KEY) ?? null;
}
