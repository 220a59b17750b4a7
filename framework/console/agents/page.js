/** Agents: the list, and what the chosen one is and may do. */

import { apiPath, get } from "../core/api.js";
import { Component, define, failureNote } from "../core/component.js";
import { fill, h } from "../core/dom.js";
import { t, tn } from "../core/i18n.js";
import { icon } from "../core/icons.js";
import { onKeys } from "../core/keys.js";
import { live } from "../core/live.js";
import { go, link, route } from "../core/route.js";
import { AgentView, brokenAgent } from "./agent.js";

const FIND = t("Find an agent");
const POLL_MS = 20_000;
const NARROW = matchMedia("(max-width: 760px)");

class AgentsPage extends Component {
  /** @type {import("../types.d.ts").AgentSummary[] | null} */
  #agents = null;
  #name = "";
  #rows = h("div.scroll");
  #doc = h("section.doc");
  #find = h("input", { class: "input", type: "search", placeholder: FIND, "aria-label": FIND });
  #view = new AgentView();

  start() {
    this.className = "split";
    this.#find.oninput = () => this.#list();
    fill(this, h("aside.side", { "aria-label": t("Agents") }, h("header", this.#find), this.#rows), this.#doc);
    this.watch(route, ({ page }) => page === "agents" && this.#open());
    this.watch(live, () => this.#agents && this.#open(true));
    // Keys without access to the configuration get no events, nor does a file that is as before an error again.
    this.every(POLL_MS, () => (!live.value || this.#agents?.some(({ stale }) => stale)) && this.#open(true));
    const keys = { j: () => this.#step(1), k: () => this.#step(-1), "/": () => this.#find.focus() };
    onKeys(null, keys, this.stopped);
  }

  #open(again = false) {
    const [name = ""] = route.value.parts;
    this.classList.toggle("detail", Boolean(name));
    if (this.#agents && name === this.#name && !again) return this.#view.select();
    this.#name = name;
    this.classList.add("loading");
    const list = get("/agents");
    const detail = name ? get(apiPath`/agents/${name}`) : null;
    void Promise.allSettled([list, detail]).then(() => this.classList.remove("loading"));
    const retry = () => this.#open(true);
    const failed = (/** @type {Error} */ error) => fill(this.#doc, h("div.mid", failureNote(error, retry)));
    void this.load(list, ({ agents }) => {
      this.#agents = agents;
      this.#list();
      if (!agents.length) fill(this.#doc, empty());
      else if (!this.#name && route.value.page === "agents" && !NARROW.matches) this.#step(1, true);
    }, failed, this.#rows);
    if (detail) void this.load(detail, (found) => {
      if (name !== this.#name) return;
      this.#view.show(found);
      if (this.#doc.firstChild !== this.#view.element) fill(this.#doc, this.#view.element);
    }, (error) => {
      const problems = errorsIn(name);
      if (name === this.#name) problems.length ? fill(this.#doc, brokenAgent(name, problems)) : failed(error);
    }, this.#doc);
  }

  /** @param {number} by @param {boolean} [replace] */
  #step(by, replace) {
    const rows = [...this.#rows.querySelectorAll("a[href^='#/agents']")];
    const next = rows[rows.findIndex((row) => row.ariaCurrent) + by];
    if (next) go(next.getAttribute("href") ?? "", { replace });
  }

  #list() {
    const text = this.#find.value.trim().toLowerCase();
    const all = this.#agents ?? [];
    const found = all.filter((agent) => `${agent.name} ${agent.description}`.toLowerCase().includes(text));
    const broken = (live.value?.problems ?? []).filter(({ path, severity }) =>
      severity === "error" && !text && all.every((agent) => agent.path !== path));
    const rows = found.map((agent) => this.#row(agent));
    const focused = document.activeElement?.getAttribute("href");
    fill(this.#rows,
      group(t("Needs attention"), rows.filter((_, i) => found[i].stale)),
      group(t("Live"), rows.filter((_, i) => !found[i].stale)),
      group(t("Other files with errors"), broken.map(({ path, line, message }) => row("danger", path, null, [message],
        { href: link("config", "files", ...path.split("/"), { line }) }))),
      all.length && !rows.length ? h("h2", t("No agent matches.")) : null);
    for (const link of this.#rows.querySelectorAll("a")) if (link.getAttribute("href") === focused) link.focus();
  }

  /** @param {import("../types.d.ts").AgentSummary} agent */
  #row({ name, description, model, executor, stale, tools }) {
    const lines = [description, [executor, model, tn(tools, "1 tool", "{n} tools")].join(" · ")];
    return row(stale ? "warn" : "ok", name, stale ? h("span.tag.k-warn", t("stale")) : null, lines,
      { href: link("agents", name), "aria-current": name === this.#name && "page" });
  }
}

/** The errors of the file that is named like an agent. @param {string} name */
const errorsIn = (name) => (live.value?.problems ?? []).filter(({ path, severity }) =>
  severity === "error" && path.replace(/^.*\/|\.\w+$/g, "") === name);

/** @param {string} title @param {Node[]} rows */
const group = (title, rows) => (rows.length ? [h("h2", title), rows] : null);

/** @param {string} kind @param {string} name @param {Node | null} tag @param {string[]} lines @param {object} props */
const row = (kind, name, tag, lines, props) => h("a.conv", props, h(`span.dot.k-${kind}`), h("b.cut", name),
  tag ?? h("span"), lines.map((line) => h("small.cut", line)));

const empty = () => h("div.empty", icon("agents"), h("h2", t("There are no agents.")),
  h("p", t("Write a file in agents.d/, or run agentsd init.")));

export const tag = "page-agents";
define(tag, AgentsPage);
