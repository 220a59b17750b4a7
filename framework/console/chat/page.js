/** Chat: conversations, the thread of one, and what is known of its steps. */

import { apiPath, del } from "../core/api.js";
import { Component, define } from "../core/component.js";
import { fill, h } from "../core/dom.js";
import { t } from "../core/i18n.js";
import { icon } from "../core/icons.js";
import { onKeys } from "../core/keys.js";
import { may, talkLink } from "../core/live.js";
import { go, link, route } from "../core/route.js";
import { ask } from "../widgets/dialog.js";
import { menu } from "../widgets/menu.js";
import { statusLabel } from "../widgets/status.js";
import { visible } from "../widgets/text.js";
import { toast } from "../widgets/toast.js";
import { ChatComposer } from "./composer.js";
import { Conversation } from "./conversation.js";
import { ChatInspector } from "./inspector.js";
import { ChatList } from "./list.js";
import { ChatThread } from "./thread.js";
import { showWelcome } from "./welcome.js";

const POLL_MS = 3000;
const AFTER_FIRST_VIEW = 200;

class ChatPage extends Component {
  #list = new ChatList();
  #thread = new ChatThread();
  #composer = new ChatComposer();
  #inspector = new ChatInspector();
  #head = h("header");
  #shown = "";
  /** @type {Conversation | null} */
  #conversation = null;
  /** The conversation's first pages. @type {Promise<void>} */
  #loaded = Promise.resolve();
  /** @type {string | null} key of the selected item */
  #selected = null;

  start() {
    this.className = "split";
    this.#thread.onDrawn = () => this.#drawn();
    this.#thread.acts = {
      onRetry: (turn) => void this.#retry(turn),
      onDrop: (turn) => (this.#conversation?.drop(turn), this.#composer.write(turn.message)),
      onEdit: (turn) => this.#composer.edit(turn.model.message || turn.message, turn.model.runId),
      onFork: (turn) => void this.#fork({ after: turn.model.runId }, crypto.randomUUID()),
      onRated: (turn, rating) => this.#conversation?.rated(turn, rating),
      address: ({ model }) => this.#address({ message: model.runId }),
    };
    this.#composer.onAgents = (agents) => showWelcome(this.#thread.welcome, agents);
    this.#composer.onSend = (message) => void this.#send(message);
    const below = h("div.compose", this.#composer);
    fill(this, this.#list, h("section.thread", this.#head, this.#thread, below), this.#inspector);
    this.on(this.#thread, "click", (event) => this.#select(event));
    this.watch(route, (place) => place.page === "chat" && this.#open(place));
    this.every(POLL_MS, () => void this.#conversation?.refresh());
    this.stopped.addEventListener("abort", () => this.#conversation?.close());
    this.#listenToKeys();
    setTimeout(() => void import("../widgets/approval-card.js").catch(() => {}), AFTER_FIRST_VIEW);
  }

  #listenToKeys() {
    const hide = (/** @type {string} */ name) => () => this.classList.toggle(name);
    onKeys(null, {
      n: () => go(link("chat", { new: 1 })),
      j: () => this.#list.move(1),
      k: () => this.#list.move(-1),
      "/": () => this.#list.find(),
      i: () => this.#composer.focus(),
      "[": hide("no-list"),
      "]": hide("no-insp"),
      Escape: () => void this.#askToStop(),
    }, this.stopped);
  }

  /** @param {import("../core/route.js").Route} place */
  #open({ parts, query }) {
    const id = parts[0] ?? null;
    const user = query.get("user");
    this.classList.toggle("detail", Boolean(id) || query.size > 0);
    this.#list.select(id === null ? "" : talkLink(id, user));
    const wanted = query.get("message") ?? "";
    if (this.#conversation && this.#conversation.id === id && this.#conversation.user === user && id) {
      if (wanted) void this.load(this.#conversation.find(wanted), () => this.#thread.reveal(wanted), () => {});
      return;
    }
    this.#conversation?.close();
    this.#selected = null;
    const conversation = (this.#conversation = new Conversation(id, user, () => this.#thread.draw()));
    this.#thread.show(conversation);
    this.#composer.show(id, query.get("agent"));
    this.#thread.reveal(wanted);
    this.#read(conversation, wanted);
    if (!id && matchMedia("(min-width: 761px)").matches) this.#composer.focus();
  }

  /** @param {Conversation} conversation @param {string} wanted the run to scroll to */
  #read(conversation, wanted) {
    this.#loaded = conversation.load(wanted);
    conversation.failed = false;
    const again = () => (this.#read(conversation, wanted), this.#thread.show(conversation));
    void this.load(this.#loaded, () => {}, (error) => this.#thread.fail(error, again));
  }

  /** @param {Record<string, string>} query @returns the address of a place in the conversation */
  #address(query) {
    const { id, user } = /** @type {Conversation} */ (this.#conversation);
    return link("chat", id ?? "", { user, ...query });
  }

  /**
   * Open a new conversation with a part of this one.
   * @param {{before?: string, after?: string}} place @param {string} key @returns {Promise<boolean>} whether it worked
   */
  async #fork(place, key) {
    const conversation = /** @type {Conversation} */ (this.#conversation);
    const failed = (/** @type {Error} */ error) => void toast({ title: error.message, tone: "danger" });
    const fork = await conversation.fork(place, key).catch(failed);
    if (!fork || conversation !== this.#conversation) return false;
    go(link("chat", fork.conversation_id, { user: conversation.user }));
    await this.#loaded.catch(() => {});
    return true;
  }

  /** @param {import("./composer.js").Outgoing} message */
  async #send({ text, agent, inputs, key, edited }) {
    if (edited && !(await this.#fork({ before: edited }, key))) return this.#composer.edit(text, edited);
    const conversation = /** @type {Conversation} */ (this.#conversation);
    const before = conversation.id;
    const queue = Boolean(conversation.open) || undefined;
    const turn = await conversation.send(text, { agent: agent ?? undefined, inputs, queue }, key);
    if (turn.sending || conversation !== this.#conversation) return;
    this.#composer.accepted(conversation.id);
    if (!before && conversation.id && route.value.page === "chat") go(link("chat", conversation.id), { replace: true });
    void this.#list.refresh();
  }

  /** @param {import("./conversation.js").Turn} turn */
  async #retry(turn) {
    const conversation = /** @type {Conversation} */ (this.#conversation);
    if (turn.sending) return void (await conversation.send(turn.message, turn.request, turn.key));
    await conversation.send(turn.model.message, { ...turn.request, queue: undefined }, crypto.randomUUID());
  }

  #drawn() {
    const conversation = /** @type {Conversation} */ (this.#conversation);
    const run = conversation.open ?? conversation.turns.at(-1)?.model ?? null;
    this.#composer.busy = Boolean(conversation.open);
    this.classList.toggle("no-run", conversation.loaded && !run);
    const chosen = this.#selected?.split(" ", 1)[0];
    const model = conversation.turns.find((turn) => turn.model.runId === chosen)?.model ?? run;
    this.#inspector.show(model, this.#selected?.slice((chosen ?? "").length + 1) ?? null);
    const first = conversation.turns[0];
    const fresh = conversation.loaded || !conversation.id ? t("New conversation") : "…";
    const title = first ? (first.model.message || first.message).split("\n", 1)[0] : fresh;
    const state = JSON.stringify([title, run?.runId, run?.status, run?.tokens, run?.agent, conversation.stopping]);
    if (state === this.#shown) return;
    this.#shown = state;
    this.#drawHead(title, run, conversation.stopping);
    void this.#list.refresh();
  }

  /** @param {string} title @param {import("../widgets/run-model.js").RunModel | null} run @param {boolean} stopping */
  #drawHead(title, run, stopping) {
    const back = h("a.ib.only", { href: link("chat"), "aria-label": t("All conversations") }, icon("left"));
    const stop = () => void this.#conversation?.cancel();
    const label = stopping ? [h("i.spin"), t("Stopping")] : [icon("stop", { size: 14 }), t("Stop"), h("kbd", "Esc")];
    const more = h("button.ib", { "aria-label": t("More") }, icon("more"));
    const items = () => [
      run && { label: t("Open run"), icon: "runs", href: link("runs", run.runId) },
      run?.status === "paused" && may("chat") && { label: t("Stop"), icon: "stop", run: stop },
      { label: t("Show the inspector"), icon: "info", run: () => this.#inspector.classList.add("open") },
      run && may("admin") && { label: t("Delete conversation"), danger: true, run: () => void this.#delete() },
    ];
    menu(more, () => items().filter((item) => item !== null && item !== false));
    const stops = run && may("chat") && (stopping || run.status === "queued" || run.status === "running");
    fill(
      this.#head,
      back,
      h("h2.cut", visible(title)),
      run?.agent && h("span.badge.line.not-s", icon("agents"), run.agent),
      run && h("span.not-s", statusLabel(run.status, run.finishReason)),
      h("span.grow"),
      stops && h("button.btn.sm", { onclick: stop, disabled: stopping }, label),
      run && !stops && h("a.ib.not-s", { href: link("runs", run.runId), ...named(t("Open run")) }, icon("runs")),
      more,
    );
  }

  /** @param {MouseEvent} event */
  #select(event) {
    const card = /** @type {HTMLElement} */ (event.target).closest("tool-card");
    const turn = /** @type {HTMLElement | null} */ (card?.closest(".turn") ?? null);
    if (!(card instanceof HTMLElement) || !turn) return;
    for (const other of this.querySelectorAll(".sel")) other.classList.remove("sel");
    card.classList.add("sel");
    this.#selected = `${turn.dataset.run} ${card.dataset.key}`;
    this.#drawn();
  }

  async #askToStop() {
    const run = this.#conversation?.open;
    if (this.#inspector.classList.contains("open")) return this.#inspector.classList.remove("open");
    if (!run || run.status !== "running" || !may("chat")) return;
    const body = t("What is finished stays.");
    if (await ask({ title: t("Stop this run?"), body, action: t("Stop") })) void this.#conversation?.cancel();
  }

  async #delete() {
    const { id = null, user = null } = this.#conversation ?? {};
    const body = t("Its runs, with their events and traces, are deleted too.");
    if (!id || !(await ask({ title: t("Delete this conversation?"), body, action: t("Delete"), danger: true }))) return;
    const done = () => (go(link("chat")), void this.#list.refresh());
    const failed = (/** @type {Error} */ error) => toast({ title: error.message, tone: "danger" });
    await this.load(del(apiPath`/conversations/${id}`, { query: { user } }), done, failed);
  }
}

/** @param {string} label */
const named = (label) => ({ title: label, "aria-label": label });

export const tag = "page-chat";
define(tag, ChatPage);
