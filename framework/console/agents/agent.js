/** One agent: its problems, permissions, prompt and history. */

import { fill, h } from "../core/dom.js";
import { t, tn } from "../core/i18n.js";
import { icon } from "../core/icons.js";
import { identity, may } from "../core/live.js";
import { go, link, route } from "../core/route.js";
import { fixOf, mayEdit } from "../widgets/fix.js";
import { place } from "../widgets/place.js";
import { placeOf, problemCards } from "../widgets/problem-card.js";
import { tabs } from "../widgets/tabs.js";
import { cases } from "./cases.js";
import { decisions } from "./decisions.js";
import { facts } from "./facts.js";
import { history } from "./history.js";
import { PolicyTable } from "./policy.js";
import { PromptView } from "./prompt.js";

/** @typedef {import("../types.d.ts").AgentDetail} AgentDetail */

/** Keeps what the reader has typed and chosen when the agent changes. */
export class AgentView {
  #head = h("div.stack");
  #panel = h("div#agent-panel", { role: "tabpanel" });
  element = h("div.mid.agent", this.#head, this.#panel);
  #policy = new PolicyTable();
  #prompt = new PromptView();
  /** @type {AgentDetail | null} */
  #detail = null;
  #tab = "";

  /** @param {AgentDetail} detail */
  show(detail) {
    this.#detail = detail;
    this.#policy.show(detail.policy);
    this.#prompt.show(detail);
    this.#tab = "";
    this.select();
  }

  /** Show the tab that the address names. */
  select() {
    const tab = route.value.query.get("tab") ?? "policy";
    if (!this.#detail || tab === this.#tab) return;
    this.#tab = tab;
    const detail = this.#detail;
    const names = { policy: t("Permissions"), prompt: t("Prompt"), decisions: t("Decisions"),
      cases: t("Tests"), history: t("History") };
    const items = Object.entries(names).map(([id, label]) => ({ id, label }));
    const open = (/** @type {string} */ id) => go(link("agents", detail.name, { tab: id === "policy" ? "" : id }));
    const focused = document.activeElement?.role === "tab" && this.#head.contains(document.activeElement);
    const row = tabs(items, tab, open, { label: t("Views"), panel: "agent-panel" });
    fill(this.#head, header(detail), problems(detail), row);
    if (focused) /** @type {HTMLElement} */ (row.querySelector("[tabindex='0']")).focus();
    fill(this.#panel, tab === "prompt" ? this.#prompt.element : tab === "history" ? history(detail.name)
      : tab === "decisions" ? decisions(detail.name) : tab === "cases" ? cases(detail.name)
      : h("div.cols", this.#policy.element, facts(detail)));
  }
}

/**
 * Return what takes the place of an agent whose file was never valid.
 * @param {string} name
 * @param {readonly import("../types.d.ts").Problem[]} found the problems of its file
 */
export function brokenAgent(name, found) {
  const { path } = found[0];
  return h("div.mid.agent",
    h("header.row.top", back(),
      h("div.grow", h("div.row.wrap", h("h2.h18", name), h("span.tag.k-danger", icon("alert"), t("invalid"))),
        h("p.sec", place(path))), fileButton(path)),
    h("div.note.k-danger", icon("alert"), h("div", t("Its file has no valid version yet, so there is no such agent."))),
    problemCards(found, fixOf));
}

const back = () => h("a.ib.only", { href: link("agents"), "aria-label": t("Back to the list") }, icon("left"));

/** @param {string} path */
const fileButton = (path) => identity.value?.agents ? null : h("a.btn.sm",
  { href: link("config", "files", ...path.split("/")) },
  icon(mayEdit() ? "edit" : "file"), mayEdit() ? t("Edit") : t("Show the file"));

/** @param {AgentDetail} detail */
function header({ name, description, policy: { stale, path } }) {
  return h("header.row.top", back(),
    h("div.grow",
      h("div.row.wrap", h("h2.h18", name), stale.length ? h("span.tag.k-warn", icon("alert"), t("stale")) : null),
      h("p.sec", description, " ", place(path))),
    may("chat") ? h("a.btn.sm", { href: link("chat", { agent: name }) }, icon("chat"), t("Chat with it")) : null,
    fileButton(path));
}

/** @param {AgentDetail} detail */
function problems({ problems: found, policy }) {
  const wrong = new Set(found.filter(({ severity }) => severity === "error").map(placeOf));
  const errors = found.filter((problem) => wrong.has(placeOf(problem)));
  const warnings = found.filter((problem) => !wrong.has(placeOf(problem)));
  return [
    policy.stale.length ? h("div.note.k-warn", icon("alert"), h("div", h("b", t("The file on disk is invalid.")), " ",
      t("Its last valid version is live; restrictions of the new one apply already."))) : null,
    problemCards(errors.toSorted((a, b) => a.severity.localeCompare(b.severity)), fixOf),
    warnings.length ? h("details", { open: warnings.length < 3 }, h("summary.row", h("span.tag.k-warn", icon("alert"),
      tn(warnings.length, "1 warning", "{n} warnings")), icon("right", { size: 14 })),
    h("div.stack", problemCards(warnings, fixOf))) : null,
  ];
}
