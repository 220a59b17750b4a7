/** Follows a stream of server-sent events, and resumes it where it was cut. */

import { access, address, apiKey, ApiError, connection, open } from "./api.js";
import { EventParser } from "./sse.js";

const LONGEST_WAIT = 8_000;
/** The server sends a comment every 15 seconds. */
const SILENCE = 40_000;

/**
 * @typedef {object} FollowOptions
 * @property {number} [after] number of the last event that is known
 * @property {import("./api.js").Query} [query]
 * @property {AbortSignal} signal ends the stream
 * @property {(event: any) => void} onEvent called with the JSON data of each event
 * @property {(state: "live" | "lost" | "ended") => void} [onState]
 */

/**
 * Follow a stream until it ends, or is aborted. Each numbered event arrives once. While the page is hidden the stream
 * is closed, because browsers allow six connections to a server; it continues when the page is visible again.
 * @param {string} path below `/agent`
 * @param {FollowOptions} options
 */
export async function follow(path, { after = 0, query, signal, onEvent, onState = () => {} }) {
  let last = after;
  let failures = 0;
  /** @param {import("./sse.js").ServerEvent} event */
  const deliver = (event) => {
    const number = event.id === null ? 0 : Number(event.id);
    if (number && number <= last) return;
    if (number) last = number;
    failures = 0;
    onEvent(JSON.parse(event.data));
  };
  while (!signal.aborted) {
    await visible(signal);
    const outcome = await readOnce(path, query, last, signal, deliver, () => onState("live"));
    if (signal.aborted) return;
    if (outcome === "ended") return onState("ended");
    if (outcome === "hidden") continue;
    onState("lost");
    if (access.value === "open") await pause(Math.min(LONGEST_WAIT, 250 * 2 ** failures++), signal);
    else await changeOf(apiKey, signal);
  }
}

/**
 * Read a stream once, to its end.
 * @param {string} path
 * @param {import("./api.js").Query | undefined} query
 * @param {number} last
 * @param {AbortSignal} signal
 * @param {(event: import("./sse.js").ServerEvent) => void} deliver
 * @param {() => void} opened
 * @returns {Promise<"ended" | "hidden" | "cut">}
 */
async function readOnce(path, query, last, signal, deliver, opened) {
  const stop = new AbortController();
  const hide = () => document.hidden && stop.abort("hidden");
  document.addEventListener("visibilitychange", hide);
  const leave = () => stop.abort();
  signal.addEventListener("abort", leave, { once: true });
  try {
    const headers = { accept: "text/event-stream", ...(last ? { "last-event-id": String(last) } : {}) };
    const response = await open(address(path, query), { headers, signal: stop.signal });
    if (response.status === 204) return "ended";
    if (!response.ok) return await refused(response);
    opened();
    return await readBody(response, stop, deliver);
  } catch (error) {
    if (stop.signal.reason === "hidden") return "hidden";
    if (error instanceof ApiError && error.status >= 400 && error.status < 500) throw error;
    if (!signal.aborted) connection.value = "lost";
    return "cut";
  } finally {
    document.removeEventListener("visibilitychange", hide);
    signal.removeEventListener("abort", leave);
    stop.abort();
  }
}

/**
 * @param {Response} response
 * @returns {Promise<"cut">}
 */
async function refused(response) {
  // 401 waits for a key; 429 and 503 are temporary.
  if (response.status === 401 || response.status === 429 || response.status >= 500) return "cut";
  const data = await response.json().catch(() => null);
  throw new ApiError(response.status, data?.error ?? {});
}

/**
 * @param {Response} response
 * @param {AbortController} stop
 * @param {(event: import("./sse.js").ServerEvent) => void} deliver
 * @returns {Promise<"ended" | "cut">}
 */
async function readBody(response, stop, deliver) {
  const parser = new EventParser();
  const reader = /** @type {ReadableStream<Uint8Array>} */ (response.body).getReader();
  const decoder = new TextDecoder();
  let ended = false;
  for (;;) {
    const silence = setTimeout(() => stop.abort("silence"), SILENCE);
    const { done, value } = await reader.read().finally(() => clearTimeout(silence));
    if (done) return ended ? "ended" : "cut";
    for (const event of parser.push(decoder.decode(value, { stream: true }))) {
      deliver(event);
      ended = event.event === "done" && JSON.parse(event.data).status !== "paused";
    }
  }
}

/** @param {AbortSignal} signal */
function visible(signal) {
  if (!document.hidden) return Promise.resolve();
  return once((done) => {
    document.addEventListener("visibilitychange", () => document.hidden || done(), { signal });
  }, signal);
}

/** @param {number} ms @param {AbortSignal} signal */
function pause(ms, signal) {
  return once((done) => {
    const timer = setTimeout(done, ms);
    signal.addEventListener("abort", () => clearTimeout(timer), { once: true });
    addEventListener("online", done, { once: true, signal });
  }, signal);
}

/** @param {import("./signal.js").Signal<any>} source @param {AbortSignal} signal */
function changeOf(source, signal) {
  return once((done) => {
    const stop = source.subscribe(() => (stop(), done()));
  }, signal);
}

/**
 * @param {(done: () => void) => void} begin
 * @param {AbortSignal} signal
 * @returns {Promise<void>}
 */
function once(begin, signal) {
  return new Promise((resolve) => {
    signal.addEventListener("abort", () => resolve(), { once: true });
    begin(() => resolve());
  });
}
