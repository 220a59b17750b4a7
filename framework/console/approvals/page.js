/** The inbox of what runs wait for, and what was decided. */

import { get } from "../core/api.js";
import { now } from "../core/clock.js";
import { Component, define, failureNote } from "../core/component.js";
import { fill, h, keyed } from "../core/dom.js";
import { runName, time } from "../core/format.js";
import { t, tParts } from "../core/i18n.js";
import { icon } from "../core/icons.js";
import { onKeys } from "../core/keys.js";
import { approvals, refreshApprovals, talkLink } from "../core/live.js";
import { go, link, route } from "../core/route.js";
import "../widgets/approval-card.js";
import { menu } from "../widgets/menu.js";
import { tabs } from "../widgets/tabs.js";
import { decidedDetail } from "./decided.js";
import { drawDecided, drawWaiting, keyOf, waitingItems } from "./items.js";
import { saidCard, thenCard } from "./around.js";

/** @typedef {import("./items.js").Item} Item */

const SOON = 15 * 60_000;

class ApprovalsPage extends Component {
  /** @type {import("../types.d.ts").DecidedConfirmation[] | null} */
  #decided = null;
  /** What the detail shows: tab, run and confirmation; "" for none. @type {string | null} */
  #shown = null;
  #list = h("div.scroll");
  #mid = h("div.mid");
  #head = h("header");

  start() {
    this.classList.add("split");
    this.#shown = null;
    const list = h("aside.side", { "aria-label": t("Approvals") }, this.#head, this.#list);
    fill(this, list, h("section.doc", { "aria-label": t("Approval"), tabindex: "-1" }, this.#mid));
    const draw = this.frame(() => this.#draw());
    for (const source of [route, approvals]) this.watch(/** @type {any} */ (source), draw);
    this.every(1000, () => this.#drawTimes());
    const keys = { j: () => this.#move(1), k: () => this.#move(-1) };
    onKeys(null, keys, this.stopped);
    this.addEventListener("decided", () => (this.#decided = null), { signal: this.stopped });
    void refreshApprovals();
  }

  get #tab() {
    return route.value.query.get("tab") === "decided" ? "decided" : "waiting";
  }

  get #who() {
    return route.value.query.get("who") ?? "";
  }

  /** @returns {Item[]} */
  get #items() {
    const all = this.#tab === "decided" ? (this.#decided ?? []).map((made) => ({ run: made, made })) : waitingItems();
    return all.filter(({ run }) => !this.#who || [`agent ${run.agent}`, `user ${run.user}`].includes(this.#who));
  }

  /** @param {Item | null} item */
  #address(item, { tab = this.#tab, who = this.#who } = {}) {
    const query = { tab: tab === "decided" ? tab : "", who };
    return item ? link("approvals", ...keyOf(item), query) : link("approvals", query);
  }

  #draw() {
    if (route.value.page !== "approvals") return;
    if (this.#tab === "decided" && !this.#decided) this.#loadDecided();
    this.classList.toggle("detail", route.value.parts.length > 0);
    this.#drawHead();
    this.#drawList();
    this.#drawDetail();
  }

  #loadDecided() {
    this.#decided = [];
    void this.load(get("/approvals/decided", { limit: 100 }), ({ decided }) => {
      this.#decided = decided;
      this.#draw();
    }, (error) => fill(this.#mid, failureNote(error, () => this.#loadDecided())), this.#list);
  }

  #drawHead() {
    const signature = JSON.stringify([this.#tab, this.#who, approvals.value.count]);
    if (this.#head.dataset.shown === signature) return;
    this.#head.dataset.shown = signature;
    const items = [
      { id: "waiting", label: t("Waiting"), count: approvals.value.count || null },
      { id: "decided", label: t("Decided") },
    ];
    this.#list.id = "approval-list";
    const choose = (/** @type {string} */ tab) => go(this.#address(null, { tab }));
    const row = tabs(items, this.#tab, choose, { label: t("Approvals"), kind: "seg", panel: this.#list.id });
    const name = this.#who.replace(/^\w+ /, "") || t("Anyone");
    const pick = h("button.pick", icon("filter", { size: 14 }), h("span.cut", name));
    menu(pick, () => this.#filters());
    fill(this.#head, row, h("span.grow"), h("div", pick));
  }

  #filters() {
    const runs = this.#tab === "decided" ? (this.#decided ?? []) : approvals.value.items;
    const names = new Set(runs.flatMap(({ agent, user }) => [`agent ${agent}`, ...(user ? [`user ${user}`] : [])]));
    return ["", ...[...names].sort()].map((who) => ({
      label: who || t("Anyone"),
      checked: who === this.#who,
      run: () => go(this.#address(null, { who })),
    }));
  }

  #drawList() {
    const items = this.#items;
    const soon = items.filter((item) => isSoon(item));
    const rest = items.filter((item) => !isSoon(item));
    const groups = [
      { name: t("Expire within 15 minutes"), items: soon },
      { name: this.#tab === "decided" ? t("Latest") : t("No hurry"), items: rest },
    ].filter((group) => group.items.length);
    keyed(
      this.#list,
      groups,
      (group) => group.name,
      (group) => h("section", h("h2", group.name), h("div")),
      (node, group) => this.#drawGroup(node.lastElementChild, group.items),
    );
    this.#list.classList.toggle("none", !groups.length);
  }

  /** @param {HTMLElement} parent @param {Item[]} items */
  #drawGroup(parent, items) {
    const chosen = this.#chosen();
    keyed(
      parent,
      items,
      (item) => keyOf(item).join("/"),
      () => h("a.item", { onclick: (/** @type {any} */ event) => this.#enter(event) }),
      (/** @type {HTMLAnchorElement} */ node, item) => {
        node.href = this.#address(item);
        if (item.made) drawDecided(node, item.made);
        else drawWaiting(node, item);
        if (chosen && same(item, chosen)) node.setAttribute("aria-current", "true");
        else node.removeAttribute("aria-current");
      },
    );
  }

  #drawTimes() {
    if (this.#tab === "waiting") this.#drawList();
  }

  /** The item of the address; without one, the first, where there is room beside the list. @returns {Item | null} */
  #chosen() {
    const [runId, id] = route.value.parts;
    const items = this.#items;
    if (!runId) return matchMedia("(max-width: 760px)").matches ? null : (items[0] ?? null);
    return items.find((item) => same(item, { runId, id })) ?? null;
  }

  #drawDetail() {
    const item = this.#chosen();
    const key = item ? JSON.stringify([this.#tab, keyOf(item)]) : "";
    if (key === this.#shown || (!item && this.#stays())) return;
    this.#shown = key;
    if (!item) return fill(this.#mid, this.#nothing());
    const head = this.#detailHead(item);
    if (item.made) return fill(this.#mid, head, decidedDetail(item.made));
    const asked = /** @type {import("../types.d.ts").Confirmation} */ (item.asked);
    const card = /** @type {import("../widgets/approval-card.js").ApprovalCard} */ (h("approval-card"));
    card.show({ runId: item.run.run_id, confirmation: asked });
    const said = h("section.card");
    fill(this.#mid, head, card, h("div.pair", said, thenCard(asked)));
    void saidCard(said, item.run);
  }

  /** What was decided a moment ago stays in view, though the list has lost it. */
  #stays() {
    if (!this.#shown) return false;
    const [tab, key] = JSON.parse(this.#shown);
    return tab === this.#tab && route.value.parts.every((part, i) => part === key[i]);
  }

  #nothing() {
    if (route.value.parts.length) {
      const [run] = route.value.parts;
      const name = h("a.lk", { href: link("runs", run) }, runName(run));
      const text = tParts("It was decided, or {run} has ended.", { run: name });
      return h("div.empty", icon("inbox"), h("h2", t("This approval is not open")), h("p", text));
    }
    if (this.#tab === "decided") return h("div.empty", icon("inbox"), h("h2", t("Nothing was decided yet")));
    const text = t("Calls and plans that need a person appear here, of all runs.");
    return h("div.empty", icon("inbox"), h("h2", t("Nothing waits for you")), h("p", text));
  }

  /** @param {Item} item */
  #detailHead({ run, asked, made }) {
    const { conversation_id: id, user } = run;
    const conversation = id && h("a.lk", { href: talkLink(id, user) }, t("conversation"));
    const at = made ? made.at : /** @type {any} */ (run).paused_at;
    const facts = [
      t("{agent} asked", { agent: asked?.agent || run.agent }),
      run.user ? t("for {user}", { user: run.user }) : null,
      time(at),
      conversation,
      h("a.lk.mono", { href: link("runs", run.run_id), title: run.run_id }, runName(run.run_id)),
      h("span", `g${run.generation}`),
    ];
    const parts = facts.filter(Boolean).flatMap((fact, i) => (i ? [" · ", fact] : [fact]));
    const back = h("a.ib.only", { href: this.#address(null), "aria-label": t("All approvals") }, icon("left"));
    const title = h("div.grow", h("h2.cut.h18", run.message || asked?.tool || ""), h("p.small.dim", parts));
    return h("div.row.doc-head", back, title);
  }

  /** @param {number} step */
  #move(step) {
    const items = [...this.querySelectorAll("a.item")].map((node) => /** @type {HTMLAnchorElement} */ (node));
    const at = items.findIndex((node) => node.hasAttribute("aria-current"));
    const next = items[at < 0 ? 0 : Math.max(0, Math.min(items.length - 1, at + step))];
    if (!next) return;
    go(next.hash);
    next.focus();
  }

  /** Show an item, and take the focus from the list into its card. @param {MouseEvent} event */
  #enter(event) {
    if (event.ctrlKey || event.metaKey || event.shiftKey) return; // a tab of its own
    event.preventDefault();
    go(/** @type {HTMLAnchorElement} */ (event.currentTarget).hash);
    this.#draw();
    /** @type {HTMLElement | null} */ (this.querySelector(".ask") ?? this.querySelector(".doc"))?.focus();
  }
}

/** @param {Item} item */
function isSoon({ asked, made }) {
  return !made && Boolean(asked?.expires_at) && Date.parse(asked?.expires_at ?? "") - now() < SOON;
}

/** @param {Item} item @param {Item | {runId: string, id: string}} other */
function same(item, other) {
  const [runId, id] = "run" in other ? keyOf(other) : [other.runId, other.id];
  const [run, confirmation] = keyOf(item);
  return run === runId && (id === undefined || confirmation === id);
}

export const tag = "page-approvals";
define(tag, ApprovalsPage);
