/** The card of one confirmation: what is asked and why, the form, the decision, and how it was decided. */

import { ApiError, apiPath, connection, post } from "../core/api.js";
import { now } from "../core/clock.js";
import { Component, define, failureNote } from "../core/component.js";
import { sameJson } from "../core/exact-json.js";
import { fill, h } from "../core/dom.js";
import { fullTime, timeLeft } from "../core/format.js";
import { t, tParts } from "../core/i18n.js";
import { icon } from "../core/icons.js";
import { onKeys } from "../core/keys.js";
import { approvals, identity, may, refreshApprovals } from "../core/live.js";
import { bodyOf } from "./approval-body.js";
import { decidedText, followRun, readRun } from "./approval-record.js";
import { buttons, explanation, writingBox } from "./approval-buttons.js";
import * as view from "./approval-view.js";

/** @typedef {import("../types.d.ts").PendingConfirmation} Confirmation */
/** @typedef {{runId: string, confirmation: Confirmation}} Subject */

const [URGENT, SLOW] = [60_000, 5_000];

export class ApprovalCard extends Component {
  /** @type {Subject | null} */
  #subject = null;
  /** @type {"loading" | "open" | "sending" | "busy" | "over"} */
  #state = "loading";
  /** @type {import("./approval-record.js").PausedRun | null} */
  #record = null;
  /** @type {import("./approval-body.js").Body | null} */
  #body = null;
  #editing = false;
  /** @type {"" | "reject" | "respond"} what a person writes instead of approving */ #writing = "";
  /** @type {import("../types.d.ts").Decision | null} sent again when the run asks again, because it was at work */
  #again = null;
  /** @type {import("../types.d.ts").Decision | null} */
  #sent = null;
  #message = "";
  #asking = false;
  #askAgain = false;
  #following = new AbortController();
  #left = h("span.left");
  #foot = h("footer");
  #text = writingBox(() => this.#checkText(), () => this.#writing && this.#write(""));
  #content = h("fieldset", { class: "in" });
  #alert = h("span.sr", { role: "alert" });

  /**
   * Show a confirmation of a run. The card reads the rest from the server, and follows the run.
   * @param {Subject} subject
   */
  show(subject) {
    const shown = this.#subject;
    if (shown?.runId === subject.runId && shown.confirmation.id === subject.confirmation.id) return;
    this.#subject = subject;
    if (!this.isConnected) return;
    this.disconnectedCallback();
    this.connectedCallback();
  }

  start() {
    if (!this.#subject) return;
    this.#following = new AbortController();
    this.stopped.addEventListener("abort", () => this.#following.abort(), { once: true });
    this.#reset();
    this.#frame();
    for (const scope of [this, null]) onKeys(scope, this.#keys(), this.#following.signal);
    this.every(1000, () => this.#tick());
    this.watch(connection, (state) => (state === "up" ? void this.#ask() : this.#drawButtons()));
    this.watch(approvals, () => this.#state !== "loading" && this.#state !== "over" && void this.#ask());
    this.watch(identity, () => this.#drawButtons());
    view.markSeen(this.#foot, this.stopped);
  }

  #reset() {
    this.#state = "loading";
    this.#record = this.#body = this.#again = null;
    this.#message = this.#writing = this.#text.value = "";
    this.#editing = this.#asking = false;
    fill(this.#alert);
  }

  get #asked() {
    return /** @type {Subject} */ (this.#subject).confirmation;
  }

  #frame() {
    const title = h("b", { id: `a-${this.#asked.id}` }, view.titleOf(this.#asked));
    const mark = icon(this.#asked.kind === "plan" ? "plan" : "human");
    const header = h("header", mark, title, h("span.grow"), view.riskTag(this.#asked), this.#left);
    const card = h("section.ask", { "aria-labelledby": title.id, tabindex: "-1" });
    fill(card, header, this.#content, this.#foot, this.#alert);
    fill(this, card);
    fill(this.#content, view.lead(this.#asked), view.reasons(this.#asked));
    this.#drawButtons();
  }

  /** Ask the server how the confirmation stands. */
  async #ask() {
    const subject = this.#subject;
    this.#askAgain = this.#asking;
    if (!subject || this.#asking || this.#state === "over") return;
    this.#asking = true;
    const failed = (/** @type {Error} */ error) => this.#record ?? fill(this.#content, failureNote(error));
    await this.load(readRun(subject.runId, this.stopped), (record) => this.#take(record), failed);
    this.#asking = false;
    if (this.#askAgain) await this.#ask();
  }

  /** @param {import("./approval-record.js").PausedRun} record */
  #take(record) {
    this.#record = record;
    const { id } = this.#asked;
    const pending = record.pending.find((one) => one.id === id);
    const made = record.decisions.find((one) => one.confirmation_id === id) ?? (pending ? null : this.#unread());
    const mine = made !== null && this.#state === "sending" && sameJson(made.decision, this.#sent);
    if (made) this.#close(decidedText(made, this.#asked), mine);
    else if (pending) this.#open(pending, record.seq);
    else if (record.status === "running") this.#wait();
    else this.#close({ icon: "x", kind: "none", text: t("no longer asked") });
  }

  /** @param {Confirmation} pending @param {number | null} seq */
  #open(pending, seq) {
    if (this.#state === "loading") {
      /** @type {Subject} */ (this.#subject).confirmation = pending;
      this.#body = bodyOf(pending, () => this.#drawButtons());
      const login = view.loginButton(pending, this.#record?.user);
      const facts = [view.lead(pending), view.address(pending), view.reasons(pending), login];
      fill(this.#content, facts, this.#body?.element);
      const { runId } = /** @type {Subject} */ (this.#subject);
      if (seq !== null) followRun(runId, seq, this.frame(() => void this.#ask()), this.#following.signal);
    }
    if (this.#state === "sending" && !this.#again) return;
    this.#state = "open";
    this.#tick();
    this.#drawButtons();
    const again = this.#again;
    this.#again = null;
    if (again) void this.#send(again);
  }

  #wait() {
    if (this.#state === "sending" && !this.#again) return;
    this.#state = "busy";
    this.#drawButtons();
  }

  /** What was sent, for a key that may not read how it was decided. */
  #unread() {
    if (this.#state !== "sending" || !this.#sent || this.#record?.seq !== null) return null;
    return { decision: this.#sent, by: identity.value?.name ?? null, at: new Date(now()).toISOString() };
  }

  /** @param {import("./approval-view.js").Outcome} outcome @param {boolean} [mine] */
  #close(outcome, mine) {
    const unsent = mine ? null : this.#unsent();
    const hadFocus = this.contains(document.activeElement);
    this.#state = "over";
    this.#following.abort();
    const line = view.outcomeLine(this.#asked, outcome);
    fill(this, line, unsent);
    if (hadFocus) line.focus();
    void refreshApprovals();
    this.dispatchEvent(new CustomEvent("decided", { bubbles: true, detail: this.#subject }));
  }

  #unsent() {
    const parts = [this.#text.value.trim()];
    if (this.#body?.changes()) parts.push(JSON.stringify(this.#body.value(), null, 2));
    return view.unsentNote(parts.filter(Boolean).join("\n\n"));
  }

  #tick() {
    const { expires_at } = this.#asked;
    if (!expires_at || this.#state === "over") return;
    const rest = Date.parse(expires_at) - now();
    const begun = Date.parse(this.#record?.paused_at ?? "") || now();
    const then = this.#asked.on_expiry === "cancel" ? t("then the run is cancelled") : t("then it is rejected");
    this.#left.title = `${t("Expires {time}", { time: fullTime(expires_at) })}, ${then}`;
    const text = rest > 0 ? tParts("{time} left", { time: timeLeft(rest) }) : t("expired, asking the server");
    fill(this.#left, view.ring(rest, Date.parse(expires_at) - begun), h(rest < URGENT ? "b" : "span", text));
    if (rest < URGENT && !this.#alert.textContent) {
      const values = { what: this.#asked.tool || this.#asked.kind, time: timeLeft(rest) };
      fill(this.#alert, t("The approval of {what} expires in {time}", values));
    }
    if (rest > 0) return;
    this.#drawButtons();
    void this.#ask();
  }

  get #isLocked() {
    const isExpired = Date.parse(this.#asked.expires_at ?? "") <= now();
    return this.#state !== "open" || connection.value === "lost" || isExpired;
  }

  #drawButtons() {
    if (!this.#subject || this.#state === "over") return;
    const locked = this.#isLocked;
    this.#content.disabled = locked;
    this.#foot.setAttribute("aria-busy", String(this.#state === "sending"));
    const focused = /** @type {HTMLElement | null} */ (this.#foot.querySelector(":focus"));
    const [body, writing, text] = [this.#body, this.#writing, this.#text];
    const shown = { subject: this.#subject, body, writing, text, locked, editing: this.#editing, note: this.#note() };
    fill(this.#foot, identity.value && !may("decide") ? explanation(this.#subject) : buttons(shown, this.#acts));
    if (focused) this.#focus(`[data-act="${focused.dataset.act}"]`);
  }

  #checkText() {
    const send = /** @type {HTMLButtonElement | null} */ (this.#foot.querySelector("[data-act=send]"));
    if (send) send.disabled = this.#isLocked || (this.#writing !== "reject" && !this.#text.value.trim());
  }

  #note() {
    if (this.#state === "sending") return [h("i.spin"), this.#message || t("sending the decision")];
    if (this.#state === "busy") return t("The run is at work. It asks again when it pauses.");
    if (connection.value === "lost") return t("The server does not respond. Deciding is off until it does.");
    return this.#message || (this.#body?.problems() ?? []).join("; ");
  }

  /** @type {import("./approval-buttons.js").Acts} */
  #acts = {
    approve: () => this.#approve(),
    edit: () => this.#edit(),
    write: (what) => this.#write(what),
    finish: () => this.#finish(),
    send: (decision) => void this.#send(decision),
  };

  /** The keys of the card with the focus; without one, of the first open card of the page. */
  #keys() {
    const can = () => !this.#isLocked && may("decide") && !this.#writing;
    return {
      a: () => can() && !view.isQuestion(this.#asked) && "seen" in this.#foot.dataset && this.#approve(),
      e: () => can() && view.isProposal(this.#asked) && this.#edit(),
      r: () => can() && this.#asked.kind !== "step" && this.#write("reject"),
      m: () => can() && view.click(this.#foot.querySelector("[data-act=remember]")),
      s: () => can() && view.isProposal(this.#asked) && !view.isFixed(this.#asked) && this.#write("respond"),
      "Control+Enter": () => view.click(this.#foot.querySelector(".btn:has(.any)")),
    };
  }

  #approve() {
    const body = this.#body;
    if (body?.problems().length) return;
    void this.#send(body?.changes() ? { type: "edit", arguments: body.value() } : { type: "approve" });
  }

  #edit() {
    this.#editing = !this.#editing;
    this.#body?.edit(this.#editing);
    this.#drawButtons();
    this.#focus(this.#editing ? ".in :is(input:not([readonly], [type=checkbox]), textarea, select)" : ".ask");
  }

  /** @param {string} selector */
  #focus(selector) {
    /** @type {HTMLElement | null} */ (this.querySelector(selector))?.focus();
  }

  /** @param {"" | "reject" | "respond"} what */
  #write(what) {
    this.#writing = what;
    this.#message = "";
    this.#drawButtons();
    this.#focus(what ? "footer textarea" : ".ask");
  }

  #finish() {
    const reason = this.#text.value.trim();
    void this.#send(this.#writing === "reject" ? { type: "reject", reason } : { type: "respond", text: reason });
  }

  /** @param {import("../types.d.ts").Decision} decision */
  async #send(decision) {
    if (this.#isLocked || !this.#subject) return;
    const { runId, confirmation } = this.#subject;
    [this.#state, this.#sent, this.#message] = ["sending", decision, ""];
    this.#drawButtons();
    const slow = setTimeout(() => ((this.#message = t("still waiting for the server")), this.#drawButtons()), SLOW);
    try {
      await post(apiPath`/runs/${runId}/decisions`, { decisions: { [confirmation.id]: decision } });
    } catch (error) {
      this.#failed(/** @type {ApiError} */ (error), decision);
    } finally {
      clearTimeout(slow);
      await this.#ask();
    }
  }

  /** @param {ApiError} error @param {import("../types.d.ts").Decision} decision */
  #failed(error, decision) {
    if (error.code === "run_busy") this.#again = decision; // another card of the run was faster
    else if (error.status !== 409) this.#message = error.message;
    this.#state = "open";
    this.#drawButtons();
  }
}

define("approval-card", ApprovalCard);
