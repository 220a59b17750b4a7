/** One run: what it is, its figures, what went wrong, and its tabs. */

import { apiPath, get } from "../core/api.js";
import { Component, define, failureNote } from "../core/component.js";
import { fill, h } from "../core/dom.js";
import { t } from "../core/i18n.js";
import { icon } from "../core/icons.js";
import { live } from "../core/live.js";
import { go, link, route } from "../core/route.js";
import { follow } from "../core/stream.js";
import { argumentText } from "../widgets/json.js";
import { isOpen } from "../widgets/status.js";
import { tabs } from "../widgets/tabs.js";
import { layout, spansOfCalls } from "../widgets/trace-layout.js";
import "../widgets/waterfall.js";
import "./events.js";
import { banners, figures, header, talk } from "./head.js";
import { filesTab, messagesTab } from "./tabs.js";
import { inspect, pausesOf, wantedRow } from "./inspector.js";

/** @typedef {import("../types.d.ts").RunDetail} Run */

/** Spans of the first page, which is shown at once, and of those after it. */
const [FIRST, MORE] = [500, 10_000];
/** Tabs that show the trace. */
const TRACED = ["waterfall", "tree"];

class RunPage extends Component {
  /** @type {any} `Run`, once it is read */
  #run = null;
  /** @type {any[]} numbered ones */
  #events = [];
  /** @type {import("../widgets/trace-layout.js").Part[]} */
  #parts = [];
  /** Whether spans are stored; null: not asked yet. @type {boolean | null} */
  #stored = null;
  #followed = false;
  #waits = false;
  #tab = "";
  #head = h("div");
  #figures = h("div");
  #notes = h("div.stack.run-notes");
  #talk = h("div");
  #tabs = h("div");
  #panel = h("div#run-panel", { role: "tabpanel", tabindex: "-1" });
  #side = h("aside.insp", { "aria-label": t("Selected step") });
  #legend = h("div.legend");
  #waterfall = /** @type {import("../widgets/waterfall.js").RunWaterfall} */ (h("run-waterfall"));
  #list = /** @type {import("./events.js").RunEvents} */ (h("run-events"));

  start() {
    this.#waterfall.addEventListener("select", () => {
      this.#side.classList.add("open");
      this.#go(this.#tab);
    });
    void this.load(
      this.#read(),
      () => this.#begin(),
      (error) => (/** @type {any} */ (error).status === 404 ? fill(this, missing()) : this.fail(error)),
    );
  }

  get #path() {
    return apiPath`/runs/${this.dataset.id}`;
  }

  /** @param {string} tab */
  #go(tab) {
    go(link("runs", this.dataset.id ?? "", { tab, at: this.#waterfall.selected }), { replace: true });
  }

  async #read() {
    const trace = this.#stored === null ? null : this.#readTrace();
    this.#run = await get(this.#path);
    await trace;
  }

  /** Read the spans in pages, which are shown as they come the first time. */
  async #readTrace() {
    const first = this.#stored === null;
    this.#stored ??= true;
    /** @type {import("../types.d.ts").Span[]} */
    const spans = [];
    let after;
    do {
      const query = { after, limit: after ? MORE : FIRST };
      /** @type {any} */
      const page = await get(`${this.#path}/trace`, query, { signal: this.stopped }).catch(() => ({ spans: [] }));
      if (this.stopped.aborted) return;
      spans.push(...page.spans);
      after = page.next;
      this.#stored = spans.length > 0;
      if (first || !after) this.#parts = layout(this.#stored ? spans : spansOfCalls(this.#run.trace));
      if (first) this.#draw();
    } while (after);
    if (first) this.#waterfall.reveal();
  }

  #begin() {
    const draw = this.frame(() => this.#draw());
    const main = [this.#head, this.#figures, this.#notes, this.#talk, this.#tabs, this.#panel];
    fill(this, h("div.run-main", main), this.#side);
    this.watch(route, ({ page, parts, query }) => {
      if (page !== "runs" || parts[0] !== this.dataset.id) return;
      this.#waterfall.selected = query.get("at") ?? "";
      this.#showTab(query.get("tab") ?? "");
      this.#draw();
    });
    this.watch(live, draw); // the live generation is in the label of a button
    this.every(1000, () => isOpen(this.#run) && draw());
    this.addEventListener("toggle", draw, { capture: true, signal: this.stopped }); // a menu was open
  }

  /** Follow the events, once a tab shows them or they may change the run. */
  #follow() {
    if (this.#followed) return;
    this.#followed = true;
    const draw = this.frame(() => this.#draw());
    const onEvent = (/** @type {any} */ event) => {
      if (!event.seq) return;
      this.#events.push(event);
      this.#list.add(event);
      draw();
      if (isOpen(this.#run)) this.#readSoon();
    };
    const options = { query: { wait: true }, signal: this.stopped, onEvent };
    follow(`${this.#path}/events`, options).catch((error) => this.#panel.before(failureNote(error)));
  }

  #readSoon() {
    if (this.#waits) return;
    this.#waits = true;
    setTimeout(async () => {
      this.#waits = false;
      await this.#read().catch(() => {}); // the page says when the connection is lost
      if (!this.stopped.aborted) this.#draw();
    }, 600);
  }

  /** @param {string} wanted */
  #showTab(wanted) {
    const labels = [t("Waterfall"), t("Tree"), t("Events"), t("Messages"), t("Files")];
    const ids = ["waterfall", "tree", "events", "messages", "files"];
    const tab = ids.includes(wanted) ? wanted : "waterfall";
    if (tab === this.#tab) return;
    this.#tab = tab;
    const traced = TRACED.includes(tab);
    this.classList.toggle("traced", traced);
    if (traced && this.#stored === null) void this.load(this.#readTrace(), () => {});
    if (traced || tab === "events" || isOpen(this.#run)) this.#follow();
    const focused = this.#tabs.contains(document.activeElement);
    const items = ids.map((id, i) => ({ id, label: labels[i] }));
    const row = tabs(items, tab, (id) => this.#go(id), { label: t("Views of the run"), panel: "run-panel" });
    fill(this.#tabs, row);
    if (focused) /** @type {HTMLElement | null} */ (row.querySelector("[tabindex='0']"))?.focus();
    const run = this.#run;
    const views = {
      waterfall: () => [this.#waterfall, this.#legend],
      tree: () => this.#waterfall,
      events: () => this.#list,
      messages: () => messagesTab(run),
      files: () => filesTab(run),
    };
    fill(this.#panel, views[/** @type {"tree"} */ (tab)]());
  }

  #draw() {
    const run = this.#run;
    refill(this.#head, header(run));
    refill(this.#figures, figures(run));
    refill(this.#notes, banners(run, this.#events));
    refill(this.#talk, talk(run, (rating) => ((run.rating = rating), this.#draw())));
    if (!TRACED.includes(this.#tab)) return;
    refill(this.#legend, legend(this.#stored, this.#parts.length > 0, run));
    this.#waterfall.hidden = !this.#parts.length;
    const args = new Map(
      this.#events
        .filter((each) => each.event === "tool_call")
        .map(({ id, arguments: all }) => [id, argumentText(all)]),
    );
    this.#waterfall.show(this.#parts, pausesOf(run, this.#parts, this.#events), this.#tab === "tree" ? args : null);
    const shown = this.#waterfall.selected || wantedRow(this.#parts);
    const row = this.#parts.flatMap((part) => part.rows).find(({ key }) => key === shown) ?? null;
    const state = [shown, row?.length, run.decisions.length, this.#events.length].join(" ");
    if (this.#side.dataset.shown === state) return;
    this.#side.dataset.shown = state;
    fill(
      this.#side,
      inspect(row, run, this.#events, () => this.#side.classList.remove("open")),
    );
  }
}

/**
 * What is shown stays, with its focus, unless its words change, and as long as a menu in it is open.
 * @param {Element} box @param {any} content
 */
function refill(box, content) {
  if (box.querySelector(":popover-open")) return;
  const next = h("div", content);
  if (next.textContent !== box.textContent) fill(box, ...next.childNodes);
}

/** @param {boolean | null} stored @param {boolean} any whether there are steps @param {Run} run */
function legend(stored, any, run) {
  const words = [t("model"), t("tool"), t("plan"), t("human"), t("failed")];
  const marks = ["model", "tool", "plan", "human", "danger"].map((kind, i) =>
    h("span.row", h(`i.sw.k-${kind}`), words[i]),
  );
  const keys = h("span.row.not-s", h("kbd", "J"), h("kbd", "K"), t("move"), h("kbd", "←"), h("kbd", "→"), t("fold"));
  const none =
    run.status === "running" || run.status === "queued" ? t("No step has ended yet.") : t("No step is stored.");
  const calls = any ? t("Without stored spans, only the times of tool calls are known.") : none;
  return [any ? marks : null, h("span.grow", stored ? null : calls), any ? keys : null];
}

/** What is shown in place of a run that does not exist. */
function missing() {
  const why = t("It was pruned or deleted, or it belongs to another user.");
  const back = h("a.btn.sm", { href: link("runs") }, t("Runs"));
  return h("div", h("div.empty", icon("runs"), h("h2", t("There is no such run")), h("p", why), back));
}

define("run-detail", RunPage);
