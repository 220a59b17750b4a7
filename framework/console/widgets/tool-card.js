/** One call of a tool: a line, which unfolds to its arguments and its result. */

import { fill, h, keyed } from "../core/dom.js";
import { duration, percent } from "../core/format.js";
import { t } from "../core/i18n.js";
import { icon } from "../core/icons.js";
import { argumentLine, argumentsBlock, argumentText } from "./json.js";
import { showMarkdown } from "./markdown.js";
import { withPlaces } from "./place.js";
import { textBlock } from "./text.js";

/** @typedef {import("../types.d.ts").RunItem} RunItem */

/** Icon, colour and word of each status. @type {Record<string, [string, string, () => string]>} */
const STATUSES = {
  pending: ["todo", "none", () => t("pending")],
  running: ["spin", "accent", () => t("running")],
  waiting: ["pause", "human", () => t("waits for you")],
  success: ["check", "ok", () => t("success")],
  error: ["alert", "danger", () => t("failed")],
  denied: ["ban", "danger", () => t("denied")],
  cancelled: ["x", "none", () => t("cancelled")],
};
/** Characters of arguments that the line may cut. */
const LONG = 64;
const UNFOLDED = new Set(["error", "denied"]);
const SAID = new Set(["waiting", "error", "denied", "cancelled"]);

/** @param {string} status of a call @param {string} [error] a person's rejection begins with the same words always */
export function statusWord(status, error = "") {
  if (status === "cancelled" && error.startsWith("The user rejected")) return t("rejected");
  return STATUSES[status]?.[2]() ?? status;
}

/**
 * Return the mark of a status.
 * @param {string} name icon, or `spin` or `todo`
 * @param {string} kind
 */
export function mark(name, kind) {
  return h(`span.st.k-${kind}`, name === "spin" ? h("i.spin") : name === "todo" ? h("i.todo") : icon(name));
}

export class ToolCard extends HTMLElement {
  #shown = "";
  #began = 0;
  #details = h("details", { class: "call" });
  #summary = h("summary");
  #more = h("div.more");
  /** @type {RunItem | undefined} */
  #item;

  /**
   * Show a call.
   * @param {RunItem} item
   * @param {boolean} [live] whether it is in progress now, so that its time counts
   */
  show(item, live = false) {
    this.#item = item;
    if (!this.#summary.isConnected) this.#build();
    if (live && item.status === "running") this.#began ||= Date.now();
    const { status = "", progress, message, result, error, ms, arguments: args } = item;
    const state = JSON.stringify([status, progress, message, ms, error, result?.length, args]);
    if (state !== this.#shown) this.#draw(item);
    this.#shown = state;
    if (this.#details.open) this.#unfold();
    this.tick();
  }

  /** Count the time of a call in progress. */
  tick() {
    const time = this.querySelector(".ms.now");
    if (time && this.#began) time.textContent = duration(Math.round((Date.now() - this.#began) / 100) * 100);
  }

  #build() {
    this.#details.addEventListener("toggle", () => this.#details.open && this.#unfold());
    this.#details.append(this.#summary, this.#more);
    this.append(this.#details);
  }

  /** @param {RunItem} item */
  #draw({ status = "", tool = "", arguments: args = {}, progress, ms, error = "" }) {
    const [name, kind] = STATUSES[status] ?? STATUSES.pending;
    const share = status === "running" && progress !== undefined ? percent(progress) : "";
    const word = statusWord(status, error);
    const said = SAID.has(status) ? word : share;
    this.#details.className = `call k-${kind}`;
    const time = h("span.ms", { class: status === "running" ? "now" : "" }, ms === undefined ? "" : duration(ms));
    const line = h("span.args.cut", argumentLine(args));
    const head = [mark(name, kind), h("span.sr", SAID.has(status) ? "" : `${word} `), h("code.name", tool), line];
    fill(this.#summary, head, said && h("span.say", said), time, icon("right"));
    if (UNFOLDED.has(status) && !UNFOLDED.has(STATUS.get(this) ?? "")) this.#details.open = true;
    STATUS.set(this, status);
    this.#details.querySelector("progress")?.remove();
    const bar = { value: progress ?? 0, max: 1, "aria-label": t("Progress") };
    if (status === "running" && progress !== undefined) this.#details.append(h("progress", bar));
    this.#more.replaceChildren();
  }

  #unfold() {
    const item = /** @type {RunItem} */ (this.#item);
    const isAgent = item.tool?.startsWith("agent.");
    if (!this.#more.childElementCount) fill(this.#more, this.#content(item, Boolean(isAgent)));
    const inside = this.#more.querySelector(".inside");
    if (inside && item.items) showItems(inside, item.items);
  }

  /** @param {RunItem} item @param {boolean} isAgent */
  #content({ arguments: args, status, message, result, error }, isAgent) {
    const failed = status === "error" || status === "denied" || status === "cancelled";
    return [
      status === "running" && message ? h("p", message) : null,
      failed && error ? h("p", status === "denied" ? `${t("Not called.")} ` : "", withPlaces(error)) : null,
      args && argumentText(args).length > LONG ? argumentsBlock(args) : null,
      h("div.inside"),
      !failed && result && !isAgent ? textBlock(result) : null,
    ];
  }
}

/** @type {WeakMap<Element, string>} */
const STATUS = new WeakMap();

/**
 * Show items of a sub-run: its texts and calls.
 * @param {Element} parent
 * @param {RunItem[]} items
 */
export function showItems(parent, items) {
  const shown = items.filter((item) => ["call", "text", "notice"].includes(item.kind));
  const create = (/** @type {RunItem} */ item) => (item.kind === "call" ? new ToolCard() : h("div.prose"));
  keyed(parent, shown, (item) => item.key, create, (node, item) => {
    if (item.kind === "call") node.show(item);
    else if (node.dataset.size !== String(item.text?.length)) showMarkdown(node, item.text ?? item.message ?? "");
    node.dataset.size = String(item.text?.length);
  });
}

customElements.define("tool-card", ToolCard);
