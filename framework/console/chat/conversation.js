/** A conversation: its runs, folded from their events, and the messages that are on their way. */

import { ApiError, apiPath, connection, get, post } from "../core/api.js";
import { may } from "../core/live.js";
import { follow } from "../core/stream.js";
import { RunModel } from "../widgets/run-model.js";
import { localRuns, rememberRun } from "./memory.js";

const PAGE = 20;
const AT_ONCE = 2;
const RETRY_MS = 2000;

/** @typedef {{agent?: string | null, inputs?: Record<string, unknown>, queue?: boolean}} Request */
/**
 * @typedef {{key: string, message: string, model: RunModel, sending: "" | "sending" | "waiting" | "failed",
 *   error: Error | null, request: Request, since: number}} Turn a message and its run. since: when it was sent from
 *   this page, in ms, or 0
 */

export class Conversation {
  /** @type {Turn[]} the oldest first */
  turns = [];
  /** Whether older turns exist that were not loaded. */
  more = false;
  loaded = false;
  /** Whether its turns could not be loaded. */
  failed = false;
  stopping = false;
  /** Turns that changed since they were drawn. @type {Set<Turn>} */
  changed = new Set();
  #stop = new AbortController();
  #loading = 0;
  /** @type {Turn[]} the newest last: the next to load */
  #waiting = [];
  /** @type {Set<string>} */
  #followed = new Set();

  /**
   * @param {string | null} id null: a new one @param {string | null} user whose it is, if links name one: each user may
   *   have a conversation with this id @param {() => void} onChange
   */
  constructor(id, user, onChange) {
    this.id = id;
    this.user = user;
    this.onChange = onChange;
  }

  /** The run in progress, waiting, or paused, if any. */
  get open() {
    return this.turns.find(({ model, sending }) => !sending && model.open)?.model ?? null;
  }

  close() {
    this.#stop.abort();
  }

  /** Load the newest turns, and those before as far as a run that is wanted. @param {string} [wanted] its id */
  async load(wanted) {
    if (this.id) await this.#page();
    await this.find(wanted);
    this.loaded = true;
    this.onChange();
  }

  /** Load earlier turns until one is that of a run. @param {string} [wanted] its id */
  async find(wanted) {
    while (wanted && this.more && !this.turns.some(({ model }) => model.runId === wanted)) await this.older();
  }

  /** Begin a new conversation with a part of this one. @param {{before?: string, after?: string}} place
   * @param {string} key of the request @returns {Promise<{conversation_id: string}>} */
  fork(place, key) {
    const options = { query: { user: this.user }, headers: { "idempotency-key": key }, signal: this.#stop.signal };
    return post(apiPath`/conversations/${this.id ?? ""}/fork`, place, options);
  }

  /** @param {Turn} turn @param {import("../types.d.ts").Rating | null} rating */
  rated(turn, rating) {
    turn.model.rating = rating;
    this.#touch(turn);
  }

  /** Load the turns before. */
  async older() {
    const first = this.turns.find((turn) => turn.model.runId);
    if (first) await this.#page(first.model.runId);
    this.onChange();
  }

  /** Look for runs that began elsewhere, and for the figures of the present one. */
  async refresh() {
    if (!this.id || !this.loaded || connection.value === "lost") return;
    await this.#page(undefined, 5).catch(() => {});
  }

  /**
   * Send a message. Its key makes sure that a repetition begins no second run.
   * @param {string} message @param {Request} request @param {string} key
   * @returns {Promise<Turn>} once it is accepted, or refused
   */
  async send(message, request, key) {
    const turn = this.#turn(key, message, request);
    turn.since = Date.now();
    for (;;) {
      turn.sending = "sending";
      this.#touch(turn);
      try {
        const owner = { conversation_id: this.id ?? undefined, user: this.user ?? undefined };
        const body = { message, ...owner, ...request };
        const run = await post("/runs", body, { headers: { "idempotency-key": key }, signal: this.#stop.signal });
        return this.#accepted(turn, run);
      } catch (error) {
        if (this.#stop.signal.aborted) return turn;
        const isLost = error instanceof ApiError && (error.status === 0 || error.status === 503);
        Object.assign(turn, { sending: isLost ? "waiting" : "failed", error });
        this.#touch(turn);
        if (!isLost) return turn;
        await new Promise((resolve) => setTimeout(resolve, RETRY_MS));
      }
    }
  }

  /** Take a message that was refused away. @param {Turn} turn */
  drop(turn) {
    this.turns = this.turns.filter((each) => each !== turn);
    this.onChange();
  }

  /** Stop the open run. */
  async cancel() {
    const run = this.open;
    if (!run || this.stopping) return;
    this.stopping = true;
    this.onChange();
    await post(apiPath`/runs/${run.runId}/cancel`).catch(() => (this.stopping = false));
  }

  /** @param {Turn} turn @param {any} run */
  #accepted(turn, run) {
    this.id ??= run.conversation_id;
    const known = this.turns.find((each) => each !== turn && each.model.runId === run.run_id);
    if (known) this.turns.splice(this.turns.indexOf(known), 1);
    turn.model.reset({ ...run, message: turn.message });
    turn.sending = "";
    rememberRun(this.id ?? "", run.run_id, turn.message);
    this.#watch(turn);
    this.#touch(turn);
    return turn;
  }

  /** @param {string} [before] @param {number} [limit] */
  async #page(before, limit = PAGE) {
    const query = { conversation_id: this.id, user: this.user, before, limit };
    const list = () => get("/runs", query, { signal: this.#stop.signal });
    const page = await (may("read") ? list() : localRuns(this.id ?? ""));
    if (limit === PAGE) this.more = Boolean(page.next);
    /** @type {any[]} */
    const add = [];
    for (const run of page.runs) {
      const known = this.turns.find(({ model }) => model.runId === run.run_id);
      if (known) this.#figures(known, run);
      // A message on its way is this run, if the response was lost.
      else if (!this.turns.some(({ sending, message }) => sending && message.startsWith(run.message))) add.push(run);
    }
    const turns = add.reverse().map((run) => newTurn(run.run_id, run.message, {}));
    turns.forEach((turn, i) => turn.model.reset(add[i]));
    const at = before ? 0 : this.turns.findLastIndex(({ sending }) => !sending) + 1;
    this.turns.splice(at, 0, ...turns);
    for (const turn of turns) (turn.model.open ? this.#watch : this.#later).call(this, turn);
    if (turns.length) this.onChange();
  }

  /** @param {Turn} turn @param {any} run */
  #figures(turn, run) {
    const shown = ({ steps, tokens, rating } = turn.model) => JSON.stringify([steps, tokens, rating]);
    const before = shown();
    turn.model.reset(run);
    if (shown() !== before) this.#touch(turn);
    const isNew = turn.model.open || !turn.model.seq; // it may have ended before it was followed
    if (isNew && !this.#followed.has(turn.key) && !this.#waiting.includes(turn)) this.#watch(turn);
  }

  /** @param {Turn} turn follow it, unless it is queued behind another: browsers allow few streams */
  #watch(turn) {
    const before = this.turns.some((each) => each !== turn && each.model.open && this.#followed.has(each.key));
    if (turn.model.status !== "queued" || !before) void this.#follow(turn);
  }

  /** @param {Turn} turn load it when those that are newer are loaded */
  #later(turn) {
    this.#waiting.push(turn);
    void this.#next();
  }

  async #next() {
    if (this.#loading >= AT_ONCE) return;
    const turn = this.#waiting.pop();
    if (!turn) return;
    this.#loading += 1;
    await this.#follow(turn);
    this.#loading -= 1;
    void this.#next();
  }

  /** @param {Turn} turn */
  async #follow(turn) {
    const { model } = turn;
    const signal = this.#stop.signal;
    this.#followed.add(turn.key);
    const path = apiPath`/runs/${model.runId}`;
    const known = (/** @type {any} */ run) => (model.reset(run), this.#touch(turn));
    void get(path, {}, { signal }).then(known).catch(() => {});
    const onEvent = (/** @type {any} */ event) => {
      if (!model.apply(event)) return;
      if (event.event === "done") void this.#ended(turn, path);
      this.#touch(turn);
    };
    const onState = (/** @type {string} */ state) => state === "live" && model.reopened();
    await follow(`${path}/events`, { query: { wait: true }, signal, onEvent, onState }).catch((error) => {
      turn.error = error;
      this.#touch(turn);
    });
    this.#followed.delete(turn.key);
  }

  /** @param {Turn} turn @param {string} path */
  async #ended(turn, path) {
    this.stopping = false;
    const run = await get(path, {}, { signal: this.#stop.signal }).catch(() => null);
    if (run) turn.model.reset(run);
    this.#touch(turn);
    void this.refresh();
  }

  /** @param {string} key @param {string} message @param {Request} request */
  #turn(key, message, request) {
    const known = this.turns.find((turn) => turn.key === key);
    if (known) return known;
    const turn = newTurn(key, message, request);
    this.turns.push(turn);
    return turn;
  }

  /** @param {Turn} turn */
  #touch(turn) {
    this.changed.add(turn);
    this.onChange();
  }
}

/** @param {string} key @param {string} message @param {Request} request @returns {Turn} */
function newTurn(key, message, request) {
  return { key, message, request, model: new RunModel(), sending: "", error: null, since: 0 };
}
