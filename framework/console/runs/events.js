/** The events of a run, filtered by kind; each unfolds to its JSON. */

import { Component, define } from "../core/component.js";
import { fill, h } from "../core/dom.js";
import { duration, tokens } from "../core/format.js";
import { t, tn } from "../core/i18n.js";
import { icon } from "../core/icons.js";
import { onKeys } from "../core/keys.js";
import { argumentText, jsonBlock } from "../widgets/json.js";
import { visible } from "../widgets/text.js";
import "../widgets/windowed-list.js";

/** @typedef {{key: number, event: any, open: boolean, height: number}} Item */

const LINE = 32;
const MOST = 420;
/** @type {Record<string, string>} */
const KINDS = {
  thinking: "model",
  content: "model",
  tool_call: "tool",
  tool_result: "tool",
  plan: "plan",
  plan_step: "plan",
  confirm_required: "human",
  grant_used: "human",
  warning: "warn",
  error: "danger",
};

/** Fed with `add`, also while it is not on the page. */
export class RunEvents extends Component {
  /** @type {Item[]} */
  #items = [];
  #kind = "";
  #bar = h("div.row.wrap");
  #list = /** @type {import("../widgets/windowed-list.js").WindowedList} */ (h("windowed-list.card", { role: "list" }));
  #soon = () => {};

  start() {
    fill(this, this.#bar, this.#list);
    this.#list.setAttribute("aria-label", t("Events"));
    this.#soon = this.frame(() => this.#draw());
    const keys = {
      j: () => this.#step(1),
      k: () => this.#step(-1),
      ArrowDown: () => this.#step(1),
      ArrowUp: () => this.#step(-1),
    };
    onKeys(this.#list, keys, this.stopped);
    this.#draw();
  }

  /** @param {any} event deltas of texts are not listed: the whole text follows */
  add(event) {
    if (!event.seq) return;
    this.#items.push({ key: event.seq, event, open: false, height: LINE });
    this.#soon();
  }

  #draw() {
    if (!this.isConnected) return;
    const kinds = new Map([["", this.#items.length]]);
    for (const { event } of this.#items) kinds.set(event.event, (kinds.get(event.event) ?? 0) + 1);
    const buttons = [...kinds].map(([kind, n]) => {
      const onclick = () => ((this.#kind = kind), this.#draw());
      const props = { "aria-pressed": String(kind === this.#kind), onclick };
      return h("button", props, kind || t("All"), h("span.n.num", n.toLocaleString("en-US")));
    });
    const focused = [...this.#bar.querySelectorAll("button")].indexOf(/** @type {any} */ (document.activeElement));
    fill(this.#bar, h("div.seg", { role: "group", "aria-label": t("Kind of event") }, buttons));
    if (focused >= 0) buttons[focused]?.focus();
    const items = this.#kind ? this.#items.filter(({ event }) => event.event === this.#kind) : this.#items;
    this.#list.show(
      items,
      (item) => this.#row(item),
      ({ height }) => height,
      (node, item, i) => this.#update(node, item, i, items.length),
    );
  }

  /** @param {Item} item */
  #row(item) {
    const { event } = item;
    const kind = event.status === "error" || event.status === "failed" ? "danger" : (KINDS[event.event] ?? "none");
    const line = h(
      "button.ev",
      { "aria-expanded": "false", onclick: () => this.#toggle(item) },
      h("span.num.dim", event.seq),
      h(`span.ink.cut.k-${kind}`, event.event),
      h("span.cut", visible([...event.path, summary(event)].join(" › ").slice(0, 400))),
      icon("right", { size: 12 }),
    );
    return h("div", { role: "listitem" }, line);
  }

  /** @param {HTMLElement} node @param {Item} item @param {number} index @param {number} size */
  #update(node, item, index, size) {
    node.setAttribute("aria-posinset", String(index + 1));
    node.setAttribute("aria-setsize", String(size));
    const [line, body] = node.children;
    if (item.open === (body !== undefined)) return;
    line.setAttribute("aria-expanded", String(item.open));
    if (body) body.remove();
    else node.append(h("div.ev-body", { tabindex: "0" }, jsonBlock(item.event, { lines: 400 })));
  }

  /** @param {Item} item */
  #toggle(item) {
    item.open = !item.open;
    // The height must be known before the row is in the page.
    const lines = item.open ? JSON.stringify(item.event, null, 2).split("\n").length : 0;
    item.height = item.open ? LINE + Math.min(MOST, lines * 20 + 34) : LINE;
    this.#draw();
  }

  /** @param {number} by */
  #step(by) {
    const row = document.activeElement?.closest("[data-index]");
    const index = Number(row?.getAttribute("data-index") ?? -1) + by;
    this.#list.reveal(index);
    /** @type {HTMLElement | null} */ (this.#list.querySelector(`[data-index="${index}"] > .ev`))?.focus();
  }
}

/** @param {any} event what it says, in one line */
function summary(event) {
  const { status, tool, message, text } = event;
  switch (event.event) {
    case "route":
      return `${event.agent} · ${event.reason}`;
    case "handoff":
      return `${event.origin} → ${event.agent}`;
    case "tool_call":
      return [tool, argumentText(event.arguments ?? {}), message ?? status].filter(Boolean).join(" · ");
    case "tool_result":
      return [tool, status, duration(event.elapsed_ms), event.error].filter(Boolean).join(" · ");
    case "plan":
      return `${t("revision {n}", { n: event.revision })} · ${tn(event.steps.length, "1 step", "{n} steps")}`;
    case "plan_step":
      return `${event.id} · ${event.status} · ${event.description}`;
    case "confirm_required":
      return [tool || event.kind, event.rule].filter(Boolean).join(" · ");
    case "grant_used":
      return [tool, event.covers, event.origin].join(" · ");
    case "done":
      return `${status} · ${event.finish_reason} · ${t("{n} tokens", { n: tokens(event.tokens_used) })}`;
    case "warning":
    case "error":
      return `${event.code} · ${message}`;
    default:
      return (text ?? "").slice(0, 300);
  }
}

define("run-events", RunEvents);
