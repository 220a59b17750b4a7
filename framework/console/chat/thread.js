/** The turns of a conversation, which follow their end while it is in view. */

import { Component, define, failureNote, waitNote } from "../core/component.js";
import { fill, h, keyed } from "../core/dom.js";
import { t, tn } from "../core/i18n.js";
import { icon } from "../core/icons.js";
import { showTurn, turnElement } from "./turn.js";

const NEAR = 48;
/** Share of the time that drawing may take: a long text that grows is drawn less often. */
const BUSY = 4;

/** @typedef {import("./conversation.js").Conversation} Conversation */
/** @typedef {import("./conversation.js").Turn} Turn */

export class ChatThread extends Component {
  /** @type {Conversation | null} */
  #conversation = null;
  #log = h("div.log", { tabindex: 0, role: "log", "aria-live": "off", "aria-label": t("Messages") });
  #turns = h("div.turns");
  #said = h("div.sr", { "aria-live": "polite" });
  #below = h("button.btn.sm.below", { hidden: true });
  #pinned = true;
  #seen = 0;
  #drawing = false;
  #spent = 0;
  #spoken = "";
  /** Shown while there are no turns. */
  welcome = h("div.empty", { hidden: true });
  #wait = waitNote();
  #wanted = "";
  /** What the buttons of a turn do; set before the first turn is drawn. @type {import("./turn.js").Acts} */
  acts = /** @type {any} */ ({});
  onDrawn = () => {};

  start() {
    const top = h("div.older");
    this.append(this.#log, this.#below, this.#said);
    fill(this.#log, top, this.welcome, this.#wait, this.#turns);
    this.on(this.#log, "scroll", () => this.#scrolled());
    this.on(this.#below, "click", () => this.toEnd());
    new ResizeObserver(() => this.#pinned && this.toEnd()).observe(this.#turns);
    const watcher = new IntersectionObserver(([entry]) => {
      if (entry.isIntersecting && this.#conversation?.more) void this.#conversation.older();
    }, { root: this.#log });
    watcher.observe(top);
    this.every(500, () => this.#tick());
  }

  /** @param {Conversation} conversation */
  show(conversation) {
    this.#conversation = conversation;
    this.#pinned = true;
    this.#spoken = "";
    fill(this.#turns);
    this.draw();
  }

  /** Scroll to the turn of a run once it is drawn, and mark it. @param {string} runId */
  reveal(runId) {
    this.#wanted = runId;
    this.#pinned = !runId;
    if (runId) this.#seen = Number.MAX_SAFE_INTEGER; // what is loaded around it is not new
    this.draw();
  }

  #reveal() {
    const nodes = /** @type {HTMLElement[]} */ ([...this.#turns.children]);
    const node = this.#wanted && nodes.find((each) => each.dataset.run === this.#wanted);
    if (!node) return;
    this.#wanted = "";
    for (const each of nodes) each.classList.toggle("target", each === node);
    node.tabIndex = -1;
    node.focus({ preventScroll: true });
    node.scrollIntoView({ block: "start" });
  }

  /** @param {Error} error @param {() => void} [again] */
  fail(error, again) {
    if (this.#conversation) this.#conversation.failed = true;
    this.#wait.hidden = true;
    fill(this.#turns, failureNote(error, again));
  }

  /** Draw what changed, in the next frame, or later if the last time took long. */
  draw() {
    if (this.#drawing) return;
    this.#drawing = true;
    const begin = () => requestAnimationFrame(() => this.#draw());
    if (this.#spent > 12) setTimeout(begin, BUSY * this.#spent);
    else begin();
  }

  #draw() {
    this.#drawing = false;
    const conversation = this.#conversation;
    if (!conversation || this.stopped.aborted) return;
    const began = performance.now();
    const { turns, changed } = conversation;
    const last = turns.at(-1);
    const copied = turns.findLast(({ model }) => model.copiedFrom);
    this.#wait.hidden = conversation.loaded || conversation.failed || turns.length > 0;
    this.welcome.hidden = !conversation.loaded || turns.length > 0;
    keyed(this.#turns, turns, (turn) => turn.key, turnElement, (node, turn) => {
      const place = `${turn === last} ${turn === copied}`;
      if (!changed.has(turn) && node.dataset.place === place) return;
      node.dataset.place = place;
      showTurn(node, turn, { ...this.acts, last: turn === last, forked: turn === copied });
    });
    changed.clear();
    this.#reveal();
    if (this.#pinned) this.toEnd();
    else this.#count();
    this.#speak(last);
    this.onDrawn();
    this.#spent = performance.now() - began;
  }

  toEnd() {
    this.#log.scrollTop = this.#log.scrollHeight;
    this.#pinned = true;
    this.#below.hidden = true;
  }

  #scrolled() {
    const { scrollTop, scrollHeight, clientHeight } = this.#log;
    const near = scrollHeight - scrollTop - clientHeight < NEAR;
    if (this.#pinned && !near) this.#seen = this.#size();
    this.#pinned = near;
    if (near) this.#below.hidden = true;
  }

  #size() {
    const turns = this.#conversation?.turns ?? [];
    return turns.reduce((n, { model }) => n + 1 + model.items.length, 0);
  }

  #count() {
    const n = this.#size() - this.#seen;
    fill(this.#below, icon("down", { size: 14 }), tn(n, "1 new below", "{n} new below"));
    this.#below.hidden = n <= 0;
  }

  /** @param {Turn | undefined} turn announce the sentences of an answer as they are finished */
  #speak(turn) {
    const text = turn?.since ? turn.model.items.findLast((item) => item.kind === "text") : undefined;
    if (!text?.text) return;
    const whole = text.seq ? text.text : (/^[^]*[.!?。！？](?=\s|$)/.exec(text.text)?.[0] ?? "");
    const before = whole.startsWith(this.#spoken) ? this.#spoken.length : 0;
    if (whole.length <= before) return;
    this.#said.textContent = whole.slice(before, before + 2000);
    this.#spoken = whole;
  }

  #tick() {
    for (const card of this.querySelectorAll("tool-card")) /** @type {any} */ (card).tick();
  }
}

define("chat-thread", ChatThread);
