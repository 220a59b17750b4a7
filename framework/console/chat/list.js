/** The list of conversations: those that wait for a person first, then by day. */

import { get } from "../core/api.js";
import { now } from "../core/clock.js";
import { Component, define } from "../core/component.js";
import { fill, h, keyed } from "../core/dom.js";
import { fullTime, time } from "../core/format.js";
import { t } from "../core/i18n.js";
import { icon } from "../core/icons.js";
import { approvals, identity, may, talkLink } from "../core/live.js";
import { link } from "../core/route.js";
import { visible } from "../widgets/text.js";
import { localChats } from "./memory.js";

const PAGE = 30;
const POLL_MS = 5000;
const DAY = 86_400_000;

/**
 * @typedef {{conversation_id: string, title: string, agent?: string | null, status?: string | null,
 *   user?: string | null, updated_at: string, head?: string}} Row head: the title of its group, which is a row too
 */

export class ChatList extends Component {
  #search = h("input", { class: "input", type: "search", "aria-label": t("Find a conversation"), hidden: true });
  #rows = h("div.scroll");
  /** @type {Row[]} */
  #found = [];
  #shown = 1;
  #more = false;
  #current = "";

  start() {
    this.className = "side";
    const fresh = h("a.btn.sm.grow", { href: link("chat", { new: 1 }) }, icon("plus"), t("New conversation"));
    const props = { "aria-label": t("Find a conversation"), onclick: () => this.find() };
    const find = h("button.ib", props, icon("search"));
    fill(this, h("header", fresh, find), h("div.find-c", this.#search), this.#rows);
    this.#search.maxLength = 200;
    this.on(this.#search, "input", () => this.#searched());
    this.on(this.#rows, "scroll", () => this.#scrolled());
    this.watch(identity, () => void this.refresh());
    this.watch(approvals, () => void this.refresh());
    this.every(POLL_MS, () => void this.refresh());
  }

  /** Show the field that searches. */
  find() {
    this.#search.hidden = !this.#search.hidden;
    this.#search.value = "";
    if (!this.#search.hidden) this.#search.focus();
    this.#searched();
  }

  /** @param {string} address of the conversation that is open */
  select(address) {
    this.#current = address;
    this.#draw();
  }

  /** @param {number} step open the next conversation, or the one before */
  move(step) {
    const all = [...this.#rows.querySelectorAll("a")];
    const at = all.findIndex((row) => row.hasAttribute("aria-current"));
    all[Math.max(0, Math.min(all.length - 1, at + step))]?.click();
  }

  /** Find what is typed: the server searches all conversations, of which only the latest are loaded. */
  #searched() {
    this.#shown = 1;
    void this.refresh();
  }

  async refresh() {
    if (!identity.value) return;
    const wanted = this.#search.value.trim();
    const pages = [...Array(this.#shown)];
    /** @type {Row[]} */
    const found = [];
    let cursor;
    for (const _ of may("read") ? pages : []) {
      /** @type {any} */
      const page = await get("/conversations", { q: wanted, limit: PAGE, cursor }).catch(() => null);
      if (!page || wanted !== this.#search.value.trim()) return;
      found.push(...page.conversations);
      cursor = page.next;
      if (!cursor) break;
    }
    this.#more = Boolean(cursor);
    const text = wanted.toLowerCase();
    const own = () => localChats().filter(({ title }) => title.toLowerCase().includes(text));
    this.#found = may("read") ? found : own();
    this.#draw();
  }

  #scrolled() {
    const { scrollTop, scrollHeight, clientHeight } = this.#rows;
    if (!this.#more || scrollHeight - scrollTop - clientHeight > 200) return;
    this.#more = false;
    this.#shown += 1;
    void this.refresh();
  }

  #draw() {
    const waiting = this.#found.filter(({ status }) => status === "paused");
    const others = this.#found.filter(({ status }) => status !== "paused");
    /** @type {Row[]} */
    const all = [];
    for (const row of [...waiting, ...others]) {
      const group = row.status === "paused" ? t("Waits for you") : day(row.updated_at);
      if (all.at(-1)?.head !== group) all.push({ ...row, conversation_id: group, head: group });
      all.push({ ...row, head: group });
    }
    const isHead = (/** @type {Row} */ row) => row.conversation_id === row.head;
    const key = (/** @type {Row} */ row) => JSON.stringify([row.conversation_id, row.user, isHead(row)]);
    const create = (/** @type {Row} */ row) => (isHead(row) ? h("h2", row.head) : h("a.conv"));
    keyed(this.#rows, all, key, create, (node, row) => node.tagName === "A" && this.#show(node, row));
    this.classList.toggle("none", !all.length);
  }

  /** @param {HTMLAnchorElement} node @param {Row} row */
  #show(node, row) {
    const address = talkLink(row.conversation_id, row.user);
    node.toggleAttribute("aria-current", address === this.#current);
    const state = JSON.stringify([row, approvals.value.count]);
    if (node.dataset.state === state) return;
    node.dataset.state = state;
    node.href = address;
    const { kind, mark, word } = stateOf(row.status ?? "");
    const short = time(row.updated_at).replace(/^(\d\d:\d\d):\d\d$|(?<=[^\d:]) \d\d:\d\d$/, "$1");
    const when = h("time", { title: fullTime(row.updated_at) }, short);
    const waiting = approvals.value.items.find(
      (run) => run.conversation_id === row.conversation_id && [undefined, run.user].includes(row.user),
    );
    const subject = waiting?.pending[0]?.tool || word;
    const about = [waiting?.agent ?? row.agent, subject].filter(Boolean).join(" · ");
    const title = row.title.split("\n", 1)[0] || t("Conversation");
    const sign = mark && h(`span${mark}.k-${kind}`, { title: word });
    fill(node, h("b.cut", visible(title)), h("small", sign || null, h("span.cut.grow", about), when));
  }
}

/** @param {string} status */
function stateOf(status) {
  if (status === "paused") return { kind: "human", mark: ".dot", word: t("waits for you") };
  if (status === "running") return { kind: "accent", mark: ".dot.pulse", word: t("running") };
  if (status === "queued") return { kind: "none", mark: ".dot.hollow", word: t("queued") };
  if (status === "failed") return { kind: "danger", mark: ".dot", word: t("failed") };
  return { kind: "none", mark: "", word: "" };
}

/** @param {string} moment */
function day(moment) {
  const date = new Date(moment);
  const present = now();
  if (date.toDateString() === new Date(present).toDateString()) return t("Today");
  if (date.toDateString() === new Date(present - DAY).toDateString()) return t("Yesterday");
  return t("Earlier");
}

define("chat-list", ChatList);
