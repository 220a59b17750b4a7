/**
 * What a run shows, folded from its events: the same live, after a reload, and after a lost connection. No DOM.
 *
 * An item has its place from the first numbered event about it. Until then, it is in progress, at the end.
 */

/** @typedef {import("../types.d.ts").RunItem} RunItem */
/** @typedef {import("../types.d.ts").ShownStep} ShownStep */
/** @typedef {import("../types.d.ts").Confirmation} Confirmation */
/** @typedef {any} Event an event of a run, as docs/embedding.md describes it */

export class RunModel {
  runId = "";
  status = "";
  finishReason = "";
  agent = "";
  /** Why the agent was selected. */
  reason = "";
  executor = "";
  generation = 0;
  digest = "";
  /** The user's message. Lists have only its beginning. */
  message = "";
  output = "";
  /** @type {import("../types.d.ts").Rating | null} */
  rating = null;
  /** The run that this turn of a forked conversation is a copy of. @type {string | null} */
  copiedFrom = null;
  steps = 0;
  tokens = 0;
  /** @type {number | null} */
  cost = null;
  /** Number of the last event. */
  seq = 0;
  /** Items of the run itself. Those of a sub-run are in the item that began it. @type {RunItem[]} */
  items = [];
  /** @type {RunItem | null} */
  plan = null;
  /** @type {{id: string, task: string, status: string}[]} */
  todo = [];
  /** What the run waits for. @type {Confirmation[]} */
  pending = [];
  /** @type {{code: string, message: string, retryable?: boolean} | null} */
  error = null;
  /** @type {Map<string, RunItem>} by path and name */
  #known = new Map();
  /** @type {Map<string, RunItem[]>} by path */
  #scopes = new Map([["", this.items]]);

  /** Whether the run may still change. */
  get open() {
    return ["", "queued", "running", "paused"].includes(this.status);
  }

  /**
   * Take over what lists (`GET /agent/runs`) or the run itself (`GET /agent/runs/ID`) say. Its events are separate.
   * @param {any} run
   */
  reset(run) {
    if (!this.seq) this.status = run.status;
    this.runId = run.run_id;
    this.finishReason ||= run.finish_reason ?? "";
    this.agent ||= run.agent ?? "";
    this.generation ||= run.generation ?? 0;
    this.steps = run.steps ?? this.steps;
    this.tokens = run.usage?.total_tokens ?? run.tokens ?? this.tokens;
    this.cost = run.usage?.cost_usd ?? run.cost_usd ?? this.cost;
    if (run.rating !== undefined) this.rating = run.rating;
    this.copiedFrom = run.copied_from ?? this.copiedFrom;
    this.message ||= run.message ?? "";
    /** @param {any} said */
    const isIt = (said) => said.role === "user" && said.content.startsWith(this.message);
    this.message = run.messages?.findLast(isIt)?.content ?? this.message;
    for (const call of run.tool_calls ?? []) {
      const item = this.#known.get(`call ${call.id}`);
      if (item) item.arguments ??= call.arguments; // no event has the arguments of a call that a rule denied
    }
  }

  /** A stream begins: the text so far of messages in progress arrives once more. */
  reopened() {
    for (const item of this.#known.values()) if (!item.seq) item.stale = true;
  }

  /**
   * Fold one event in.
   * @param {Event} event
   * @returns {boolean} whether it was new
   */
  apply(event) {
    if (event.seq && event.seq <= this.seq) return false;
    if (event.seq) {
      this.seq = event.seq;
      this.generation = event.generation;
      if (event.event !== "done") this.#continue();
    }
    this.runId ||= event.run_id;
    RunModel.#FOLDS[event.event]?.(this, event);
    return true;
  }

  /** A run that waited and does something else was decided. */
  #continue() {
    if (this.status === "paused") {
      for (const item of this.items) if (item.kind === "ask") item.status = "decided";
      this.pending = [];
    }
    if (["", "queued", "paused"].includes(this.status)) this.status = "running";
  }

  /** @param {string[]} path @param {string} name */
  #find(path, name) {
    return this.#known.get([...path, name].join("/"));
  }

  /**
   * Return an item with these fields. It is created if there is none, and placed once its number is known.
   * @param {{seq: number, path: string[]}} event @param {string} name @param {Partial<RunItem>} fields
   */
  #item({ seq, path }, name, fields) {
    const known = this.#find(path, name);
    const scope = this.#scope(path, seq);
    if (known && (known.seq || !seq)) return Object.assign(known, fields);
    if (known) this.#drop(known);
    const item = /** @type {RunItem} */ ({ ...known, key: [...path, name].join("/"), path, seq, ...fields });
    const inProgress = seq ? scope.findIndex((each) => !each.seq) : -1;
    scope.splice(inProgress < 0 ? scope.length : inProgress, 0, item);
    this.#known.set(item.key, item);
    return item;
  }

  /** @param {RunItem | undefined} item */
  #drop(item) {
    if (!item) return;
    const scope = this.#scope(item.path, 0);
    scope.splice(scope.indexOf(item), 1);
    this.#known.delete(item.key);
  }

  /** @param {string[]} path @param {number} seq @returns {RunItem[]} the items of a sub-run, within what began it */
  #scope(path, seq) {
    const name = path.join("/");
    const items = this.#scopes.get(name) ?? [];
    this.#scopes.set(name, items);
    if (!path.length) return items;
    const parent = path.slice(0, -1);
    const id = path[path.length - 1];
    const call = this.#find(parent, `call ${id}`);
    if (call) call.items = items;
    else this.#item({ seq, path: parent }, `sub ${id}`, { kind: "sub", id: id.replace(/^step-|~\d+$/g, ""), items });
    return items;
  }

  /** @param {Event} event @param {string} kind @param {string} text of a message: a delta, or all of it */
  #text(event, kind, text) {
    const { path, message_id: id, seq } = event;
    const known = this.#find(path, `${kind} ${id}`);
    if (known?.seq) return;
    if (!text) return this.#drop(known);
    const before = seq || known?.stale ? "" : (known?.text ?? "");
    this.#item(event, `${kind} ${id}`, { kind, id, text: before + text, stale: false });
  }

  /** @param {string} id the call that a confirmation is about: its path and id, perhaps with a suffix */
  #callOf(id) {
    const path = id.split("/");
    for (let name = path.pop() ?? ""; name; name = name.replace(/[~?][^~?]*$|^[^~?]*$/, "")) {
      const call = this.#find(path, `call ${name}`);
      if (call) return call;
    }
  }

  /** @type {Record<string, (model: RunModel, event: Event) => void>} */
  static #FOLDS = {
    route(model, { agent, reason, executor = "", digest = "" }) {
      Object.assign(model, { agent, reason, executor, digest });
    },
    handoff(model, { agent, origin }) {
      Object.assign(model, { agent, reason: `${origin} handed the conversation over to it`, executor: "" });
    },
    thinking(model, event) {
      const [reasoning, said] = event.seq ? halves(event.text, event.reasoning_chars) : [event.text, ""];
      model.#text(event, "thought", reasoning);
      if (said || !reasoning) model.#text(event, "text", said);
    },
    content(model, event) {
      model.#text(event, "text", event.text);
    },
    tool_call(model, event) {
      const { id, tool, status, progress, message } = event;
      const fields = { kind: "call", id, tool, arguments: event.arguments, status, progress, message };
      model.#item(event, `call ${id}`, fields);
    },
    tool_result(model, event) {
      const { id, tool, status, result, error, elapsed_ms: ms } = event;
      model.#item(event, `call ${id}`, { kind: "call", id, tool, status, result, error, ms });
    },
    warning(model, event) {
      const { path, message_id: id, code, message, seq } = event;
      if (id) for (const kind of ["thought", "text"]) model.#drop(model.#find(path, `${kind} ${id}`));
      model.#item(event, `notice ${seq}`, { kind: "notice", id: String(seq), code, message });
    },
    plan(model, event) {
      const { path, goal, hash, revision, preflight } = event;
      const steps = revised(model.#find(path, "plan")?.steps ?? [], event);
      const item = model.#item(event, "plan", { kind: "plan", id: "plan", goal, hash, revision, preflight, steps });
      if (!path.length) model.plan = item;
    },
    plan_step(model, { path, id, status, result }) {
      const step = model.#find(path, "plan")?.steps?.find((each) => each.id === id && !each.removed);
      if (step) Object.assign(step, { status, result });
    },
    todo(model, { items }) {
      model.todo = items;
    },
    confirm_required(model, { event: _event, run_id: _run, generation: _number, path: _path, seq, ...confirmation }) {
      const { id } = confirmation;
      model.pending = [...model.pending.filter((one) => one.id !== id), confirmation];
      model.#item({ seq, path: [] }, `ask ${id}`, { kind: "ask", id, status: "open", confirmation });
      Object.assign(model.#callOf(id) ?? {}, { status: "waiting", confirmation });
    },
    error(model, { code, message, retryable }) {
      model.error = { code, message, retryable };
    },
    done(model, event) {
      const { status, finish_reason, output, tokens_used, usage, message_id: id } = event;
      const figures = { tokens: tokens_used || usage?.total_tokens || 0, cost: usage?.cost_usd ?? null };
      Object.assign(model, { status, finishReason: finish_reason, output, ...figures });
      for (const item of [...model.#known.values()]) if (!item.seq) model.#drop(item);
      const isShown = status === "paused" || model.items.some((item) => item.kind === "text" && item.text === output);
      if (output && !isShown) model.#item(event, `text ${id}.`, { kind: "text", id, text: output });
    },
  };
}

/**
 * Fold the events of a run that arrived over one or several connections.
 * @param {Event[][]} connections
 */
export function fold(...connections) {
  const model = new RunModel();
  for (const events of connections) {
    model.reopened();
    for (const event of events) model.apply(event);
  }
  return model;
}

/** @param {string} text @param {number} [chars] the reasoning and the text of a message. Characters are code points */
function halves(text, chars = Infinity) {
  let at = 0;
  for (let n = 0; n < chars && at < text.length; n += 1) at += (text.codePointAt(at) ?? 0) > 0xffff ? 2 : 1;
  return [at < text.length ? text.slice(0, at).replace(/\n$/, "") : text, text.slice(at)];
}

/** @param {ShownStep[]} before @param {Event} event the steps of a revision, with those it took away where they were */
function revised(before, { steps, changes = [], revision }) {
  /** @type {Record<string, string>} */
  const kinds = Object.fromEntries(changes.map((/** @type {any} */ { id, kind }) => [id, kind]));
  const addedIn = new Map(before.map((step) => [step.id, step.added]));
  /** @param {ShownStep} step */
  const withMark = (step) => ({ ...step, added: kinds[step.id] === "added" ? revision : addedIn.get(step.id) });
  /** @type {ShownStep[]} */
  const found = steps.map(withMark);
  before.forEach((step, at) => {
    const gone = step.removed ?? (kinds[step.id] === "removed" ? revision : undefined);
    if (gone) found.splice(at, 0, { ...step, removed: gone });
  });
  return found;
}
