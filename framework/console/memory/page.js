/** The notes that agents keep across conversations: whose they are, which run saved them, and how to forget one. */

import { apiPath, del, get } from "../core/api.js";
import { Component, define, failureNote } from "../core/component.js";
import { fill, h, keyed } from "../core/dom.js";
import { runName, time } from "../core/format.js";
import { t } from "../core/i18n.js";
import { icon } from "../core/icons.js";
import { onKeys } from "../core/keys.js";
import { may } from "../core/live.js";
import { link } from "../core/route.js";
import { ask } from "../widgets/dialog.js";
import { visible } from "../widgets/text.js";
import { toast } from "../widgets/toast.js";

/** @typedef {import("../types.d.ts").NoteDetail} Note */

const PAGE = 50;
const TYPED_MS = 250;

class MemoryPage extends Component {
  /** @type {Note[]} */
  #notes = [];
  /** @type {string | null} */
  #next = null;
  #typed = 0;
  #find = h("input", { class: "input", type: "search", placeholder: t("Find a note"), "aria-label": t("Find a note") });
  #list = h("div.stack");
  #more = h("button.btn", { type: "button", onclick: () => this.#load(this.#next) }, t("Show more"));

  start() {
    this.#find.maxLength = 200;
    this.on(this.#find, "input", () => {
      clearTimeout(this.#typed);
      this.#typed = setTimeout(() => this.#load(), TYPED_MS);
    });
    onKeys(null, { "/": () => this.#find.focus() }, this.stopped);
    fill(this, h("div.wrapper", h("div.stack", this.#find, this.#list, this.#more)));
    this.#load();
  }

  /** @param {string | null} [cursor] null: from the newest note on */
  #load(cursor = null) {
    const q = this.#find.value.trim();
    const failed = (/** @type {Error} */ error) => fill(this.#list, failureNote(error, () => this.#load()));
    const found = get("/memory", { q: q || undefined, cursor: cursor ?? undefined, limit: PAGE });
    void this.load(found, ({ notes, next }) => {
      if (q !== this.#find.value.trim()) return; // an older answer
      this.#notes = cursor ? [...this.#notes, ...notes] : notes;
      this.#next = next;
      this.#draw();
    }, failed, this.#list);
  }

  #draw() {
    this.#more.hidden = !this.#next;
    if (!this.#notes.length) return fill(this.#list, this.#find.value.trim() ? nothingFound() : empty());
    keyed(this.#list, this.#notes, ({ id }) => id, () => h("section.card.note-c"), (node, note) => {
      if (!node.firstChild) fill(node, this.#parts(note));
    });
  }

  /** @param {Note} note */
  #parts(note) {
    const text = h("p.grow", { dir: "auto" }, visible(note.text));
    const forget = h("button.btn", { type: "button", onclick: () => this.#forget(note) }, t("Forget"));
    const run = h("a.lk.mono", { href: link("runs", note.run_id), title: note.run_id }, runName(note.run_id));
    const facts = [
      note.scope === "tenant" ? t("for all users") : note.user ? t("for {user}", { user: note.user }) : t("no user"),
      t("saved by {agent}", { agent: note.agent }),
      time(note.created_at),
      run,
      note.expires_at ? h("span", t("until"), " ", time(note.expires_at)) : null,
    ];
    const line = facts.filter(Boolean).flatMap((fact, i) => (i ? [" · ", fact] : [fact]));
    const why = t("Text of tools, files or servers was in the conversation that led to it.");
    const doubt = note.untrusted ? h("span.tag.k-warn", { title: why }, t("untrusted")) : null;
    return h("div.pad", h("div.row", text, doubt, may("chat") || may("admin") ? forget : null), h("p.small.dim", line));
  }

  /** @param {Note} note */
  async #forget(note) {
    const body = t("Runs that have begun with it keep it until they end.");
    if (!(await ask({ title: t("Forget this note?"), body, action: t("Forget"), danger: true }))) return;
    const failed = (/** @type {Error} */ error) => toast({ title: error.message, tone: "danger" });
    await this.load(del(apiPath`/memory/${note.id}`), () => {
      this.#notes = this.#notes.filter(({ id }) => id !== note.id);
      toast({ title: t("The note was forgotten") });
      this.#draw();
      this.#find.focus();
    }, failed);
  }
}

const nothingFound = () => h("div.empty", icon("search"), h("h2", t("No note contains this")));

function empty() {
  const why = t("Agents with the key memory in their file keep notes here, each approved by a person.");
  return h("div.empty", icon("memory"), h("h2", t("No notes are stored")), h("p", why));
}

export const tag = "page-memory";
define(tag, MemoryPage);
