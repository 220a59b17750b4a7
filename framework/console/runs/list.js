/** The list of runs: filters in the address, pages by `next`, and new runs announced above. */

import { get } from "../core/api.js";
import { now } from "../core/clock.js";
import { Component, define, failureNote } from "../core/component.js";
import { fill, h, keyed } from "../core/dom.js";
import { cost, digest, duration, fullTime, time, tokens } from "../core/format.js";
import { t, tn } from "../core/i18n.js";
import { icon } from "../core/icons.js";
import { onKeys } from "../core/keys.js";
import { live } from "../core/live.js";
import { go, link, route } from "../core/route.js";
import { menu } from "../widgets/menu.js";
import { ratingIcon } from "../widgets/rating.js";
import { isOpen, runStatus } from "../widgets/status.js";
import { visible } from "../widgets/text.js";

/** @typedef {import("../types.d.ts").RunSummary} Run */

const PAGE = 50;

class RunsList extends Component {
  /** @type {Run[]} */
  #runs = [];
  /** @type {Run[]} those that began since */
  #fresh = [];
  /** @type {string | null} */
  #next = null;
  #asked = "";
  #bar = h("div.filters");
  #body = h("tbody");
  #choice = h("div.runs-new", { role: "status" });
  #news = h("div.runs-new", { role: "status" });
  #foot = h("div.pager");
  #card = h("section.card");
  #table = h("table.table.runs");

  start() {
    const heads = [t("Status"), t("First message"), t("Agent"), t("For"), t("Began"), t("Took"), t("Steps")];
    const cells = [...heads, t("Tokens"), t("Cost"), t("Gen")].map((text, i) => h(i > 3 ? "th.r" : "th", text));
    fill(this.#table, h("caption.sr", t("Runs, the latest first")), h("thead", h("tr", cells)), this.#body);
    fill(this, h("div.wrapper", this.#bar, this.#choice, this.#news, this.#card));
    this.watch(route, ({ page, parts }) => page === "runs" && !parts[0] && this.#read());
    this.every(4000, () => void this.#refresh());
    const find = () => /** @type {HTMLElement | null} */ (this.querySelector("input[type=search]"))?.focus();
    const keys = { j: () => this.#move(1), k: () => this.#move(-1), "/": find, c: () => this.#compare() };
    onKeys(null, { ...keys, x: () => this.#tick() }, this.stopped);
    this.on(this.#body, "change", (event) => this.#chosen(event.target.value));
  }

  /** Read the page that the address names. */
  #read() {
    const { query: at } = route.value;
    const controls = () => [...this.#bar.querySelectorAll("a, button, input")];
    const focused = controls().findIndex((each) => each === document.activeElement);
    fill(this.#bar, filterBar(filtersOf(at), this.#runs));
    /** @type {HTMLElement | undefined} */ (controls()[focused])?.focus();
    const query = { ...queryOf(filtersOf(at)), before: at.get("before"), limit: PAGE };
    const asked = JSON.stringify(query);
    if (asked === this.#asked && this.#runs.length) return this.#draw(); // only the choice of two runs has changed
    this.#asked = asked;
    this.classList.add("loading");
    const done = (/** @type {any} */ found, /** @type {Error | null} */ error = null) => {
      if (asked !== this.#asked) return;
      this.classList.remove("loading");
      if (error) this.#asked = "";
      if (error) return fill(this.#card, failureNote(error, () => this.#read()));
      [this.#runs, this.#fresh, this.#next] = [found.runs, [], found.next];
      this.#draw();
    };
    void this.load(get("/runs", query, { signal: this.stopped }), done, (error) => done(null, error), this.#card);
  }

  /** Update the runs that are shown, and count those that are new, without moving anything. */
  async #refresh() {
    const asked = this.#asked;
    const found = await get("/runs", JSON.parse(asked), { signal: this.stopped }).catch(() => null);
    if (!found || asked !== this.#asked || this.stopped.aborted) return;
    /** @type {Run[]} */
    const now = found.runs;
    const [newest] = this.#runs;
    if (!newest) [this.#runs, this.#next] = [now, found.next];
    else this.#runs = this.#runs.map((run) => now.find(({ run_id: id }) => id === run.run_id) ?? run);
    const shown = new Set(this.#runs.map((run) => run.run_id));
    this.#fresh = now.filter((run) => !shown.has(run.run_id) && run.created_at > (newest?.created_at ?? ""));
    this.#draw();
  }

  #draw() {
    const n = this.#fresh.length;
    const onclick = () => {
      [this.#runs, this.#fresh] = [[...this.#fresh, ...this.#runs], []];
      this.#draw();
    };
    const text = tn(n, "1 new run", "{n} new runs");
    const first = comparing(route.value.query);
    const what = first === "choose" ? t("Choose two runs.") : t("Choose the run to compare it with.");
    const leave = h("button.btn.sm.ghost", { onclick: () => this.#compare() }, t("Cancel"));
    const keys = h("span.row.not-s", h("kbd", "X"), t("choose"));
    fill(this.#choice, first ? h("div.note.k-info", icon("compare"), h("div", what), h("div.do", keys, leave)) : null);
    fill(this.#news, n ? h("button.btn.sm", { onclick }, icon("send", { size: 14 }), text) : null);
    if (!this.#runs.length) return fill(this.#card, nothing());
    keyed(this.#body, this.#runs, (run) => run.run_id, () => h("tr"), drawRow);
    this.#drawFoot();
    if (!this.#table.isConnected) fill(this.#card, this.#table, this.#foot);
  }

  #drawFoot() {
    const at = Object.fromEntries(route.value.query);
    const to = (/** @type {string} */ before) => ({ href: link("runs", { ...at, before }) });
    const older = this.#next ? h("a.btn.sm", to(this.#next), t("Older"), icon("right", { size: 14 })) : null;
    const newest = at.before ? h("a.btn.sm", to(""), t("Newest")) : null;
    const keys = h("span.row.not-s", h("kbd", "J"), h("kbd", "K"), t("move"), h("kbd", "↵"), t("open"));
    fill(this.#foot, tn(this.#runs.length, "1 run", "{n} runs"), h("span.grow"), keys, newest, older);
  }

  /** Begin to choose two runs, or leave it. */
  #compare() {
    const at = Object.fromEntries(route.value.query);
    go(link("runs", { ...at, compare: at.compare ? "" : "choose" }));
  }

  /** Choose the run whose row has the focus. */
  #tick() {
    const box = document.activeElement?.closest("tr")?.querySelector("input");
    if (box && this.contains(box)) box.click();
  }

  /** @param {string} id of a run that was chosen, or no longer is */
  #chosen(id) {
    const first = comparing(route.value.query);
    const at = Object.fromEntries(route.value.query);
    if (first === "choose") return go(link("runs", { ...at, compare: id }), { replace: true });
    if (first === id) return go(link("runs", { ...at, compare: "choose" }), { replace: true });
    const place = (/** @type {string} */ run) => this.#runs.findIndex(({ run_id: each }) => each === run);
    const older = place(first) < 0 || place(first) > place(id); // the list begins with the newest
    go(older ? link("compare", first, id) : link("compare", id, first));
  }

  /** @param {number} by */
  #move(by) {
    const links = [...this.#body.querySelectorAll("a")];
    const at = links.indexOf(/** @type {HTMLAnchorElement} */ (document.activeElement));
    links[Math.max(0, Math.min(links.length - 1, at + by))]?.focus();
  }
}

/** @param {HTMLElement} row @param {Run} run */
function drawRow(row, run) {
  const first = comparing(route.value.query);
  const shown = JSON.stringify([run, first]);
  if (row.dataset.shown === shown && !isOpen(run)) return;
  row.dataset.shown = shown;
  const focused = row.contains(document.activeElement);
  const name = h("a.cut", { href: link("runs", run.run_id), title: run.message }, visible(run.message || run.run_id));
  const began = h("time.sec", { datetime: run.created_at, title: fullTime(run.created_at) }, time(run.created_at));
  fill(
    row,
    h("td.st", h("span.row", first ? choice(run, first) : null, runStatus(run), rated(run))),
    h("td.w", name),
    h("td.sec.cut", { title: run.agent }, run.agent || "–"),
    h("td.dim.cut", { title: run.user }, run.user ?? "–"),
    h("td.r", began),
    h("td.r", run.elapsed_ms ? duration(run.elapsed_ms) : "–"),
    h("td.r.sec.not-s", run.steps),
    h("td.r.sec", tokens(run.tokens), h("span.only", "\u00a0", t("tokens"))),
    h("td.r", cost(run.cost_usd)),
    h("td.r", h("span.hash", { title: run.digest }, run.generation ? `g${run.generation}` : "–")),
  );
  if (focused) name.focus();
}

/** @param {Run} run @param {string} first the run that was chosen before */
function choice({ run_id: id, message }, first) {
  const label = t("Compare {run}", { run: message || id });
  return h("input", { type: "checkbox", value: id, checked: first === id, "aria-label": label });
}

/** @param {Run} run */
function rated({ rating }) {
  if (!rating) return null;
  const word = rating.value === "up" ? t("Good answer") : t("Bad answer");
  const title = [word, rating.comment].filter(Boolean).join(": ");
  return h("span", { title }, ratingIcon(rating.value), h("span.sr", title));
}

/** What is shown in place of an empty table. */
function nothing() {
  const { query } = route.value;
  const n = Object.values(filtersOf(query)).filter(Boolean).length;
  if (!n && !query.get("before")) {
    const start = h("a.btn.sm", { href: link("chat") }, t("New conversation"));
    const how = t("Each message to an agent begins one.");
    return h("div.empty", icon("runs"), h("h2", t("No runs yet")), h("p", how), start);
  }
  const why = t("Old runs are pruned: see store.retention.");
  const clear = h("a.btn.sm", { href: link("runs") }, tn(n, "Clear 1 filter", "Clear {n} filters"));
  return h("div.empty", icon("filter"), h("h2", t("No run fits these filters")), h("p", why), n ? clear : null);
}

define("runs-list", RunsList);

/** @typedef {Record<string, string>} Filters */

const NAMES = ["status", "agent", "user", "generation", "digest", "text", "time", "rating"];
const HOUR = 3_600_000;

/** @param {URLSearchParams} query @returns {Filters} */
export const filtersOf = (query) => Object.fromEntries(NAMES.map((name) => [name, query.get(name) ?? ""]));

/** @param {URLSearchParams} query whether two runs are being chosen: the first one, `choose` before that, or "" */
const comparing = (query) => query.get("compare") ?? "";

/** @param {Filters} filters @returns the parameters of `GET /agent/runs` */
export function queryOf({ status, time, text, ...same }) {
  const midnight = new Date(now()).setHours(0, 0, 0, 0);
  const hour = Math.floor(now() / 60_000) * 60_000 - HOUR;
  const since = { hour, today: midnight, week: midnight - 6 * 24 * HOUR }[time];
  const statuses = status === "running" ? ["running", "queued"] : status ? [status] : [];
  return { ...same, q: text, status: statuses, since: since ? new Date(since).toISOString() : "" };
}

/**
 * Return the controls of the filters.
 * @param {Filters} filters
 * @param {import("../types.d.ts").RunSummary[]} seen the runs on the page, whose users and generations are offered
 */
export function filterBar(filters, seen) {
  /** @param {string} name @param {any} value */
  const place = (name, value) => link("runs", { ...filters, compare: comparing(route.value.query), [name]: value });
  const words = [t("running"), t("waits for you"), t("completed"), t("failed"), t("stopped"), t("cancelled")];
  const statuses = ["running", "paused", "completed", "failed", "stopped", "cancelled"].map((name, i) => [
    name,
    words[i],
  ]);
  const current = (/** @type {string} */ name) => (filters.status === name ? "true" : null);
  const tabs = [["", t("All")], ...statuses].map(([name, label]) =>
    h("a", { href: place("status", name), "aria-current": current(name) }, label),
  );

  /** @param {string} name @param {string} mark @param {string} label @param {[any, string][]} options */
  const pick = (name, mark, label, options) => {
    const all = [["", t("any")], ...options];
    const chosen = all.find(([value]) => String(value) === filters[name])?.[1] ?? filters[name];
    const arrow = icon("down", { size: 12 });
    const button = h("button.pick", icon(mark, { size: 14 }), label, " ", h("b", chosen), arrow);
    const run = (/** @type {any} */ value) => () => go(place(name, value));
    menu(
      button,
      all.map(([value, text]) => ({ label: text, checked: String(value) === filters[name], run: run(value) })),
    );
    return button;
  };
  const choices = (/** @type {any[]} */ values, before = "") =>
    [...new Set(values.filter(Boolean))].map((value) => /** @type {[any, string]} */ ([value, before + value]));
  const numbers = [live.value?.generation, ...seen.map((run) => run.generation)];
  const times = /** @type {[any, string][]} */ ([
    ["hour", t("last hour")],
    ["today", t("today")],
    ["week", t("last 7 days")],
  ]);
  const onclick = () => go(place("digest", ""));
  const files = [t("Digest"), " ", h("b", digest(filters.digest)), icon("x", { size: 12 })];
  return [
    h("nav.seg", { "aria-label": t("Status") }, tabs),
    pick("agent", "agents", t("Agent"), choices(live.value?.agents ?? seen.map((run) => run.agent))),
    pick("user", "human", t("User"), choices(seen.map((run) => run.user))),
    pick("generation", "layers", t("Generation"), choices(numbers, "g")),
    pick("time", "clock", t("Time"), times),
    pick("rating", "up", t("Rating"), [["up", t("good")], ["down", t("bad")]]),
    filters.digest ? h("button.pick", { onclick, title: t("Remove this filter") }, files) : null,
    h("span.grow"),
    search(filters),
    compareButton(filters),
  ];
}

/** @param {Filters} filters */
function compareButton(filters) {
  const on = comparing(route.value.query);
  const onclick = () => go(link("runs", { ...filters, compare: on ? "" : "choose" }));
  const props = { onclick, "aria-pressed": String(on !== ""), title: t("Choose two runs to compare") };
  return h("button.pick.not-s", props, icon("compare", { size: 14 }), t("Compare"));
}

/** @param {Filters} filters */
function search(filters) {
  const label = t("Text, run or digest");
  const onchange = (/** @type {Event} */ event) => {
    const text = /** @type {HTMLInputElement} */ (event.target).value.trim();
    if (/^run_[0-9a-f]{32}$/.test(text)) go(link("runs", text));
    else if (/^[0-9a-f]{8,16}$/.test(text)) go(link("runs", { ...filters, digest: text, text: "" }));
    else go(link("runs", { ...filters, compare: comparing(route.value.query), text }));
  };
  const names = { type: "search", placeholder: label, "aria-label": label, maxlength: 200 };
  const field = h("input.input", { ...names, value: filters.text, onchange });
  return h("div.runs-find", icon("search", { size: 14 }), field);
}
