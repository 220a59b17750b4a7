/** The dialog in which a person chooses for which later calls an approval is remembered. */

import { apiPath, post } from "../core/api.js";
import { fill, h } from "../core/dom.js";
import { t, tParts } from "../core/i18n.js";
import { openDialog } from "./dialog.js";
import { visible } from "./text.js";

/** @typedef {import("../types.d.ts").RememberOffer} Offer */
/** @typedef {import("../types.d.ts").Remember} Remember */

const DAY = 86_400;
/** @type {Record<string, () => string>} */
const SCOPES = {
  run: () => t("this run"),
  conversation: () => t("this conversation"),
  user: () => t("all runs of this user"),
};

/**
 * Ask how an approval is remembered.
 * @param {import("./approval-card.js").Subject} subject
 * @param {(remember: Remember) => void} approve
 */
export function openRemember({ runId, confirmation }, approve) {
  const offer = /** @type {Offer} */ (confirmation.remember);
  const [count, fault] = [h("p.small.dim", { role: "status" }), h("p.problem.small", { role: "alert" })];
  const widths = offer.widths.map(({ width, when }) => widthChoice(width, when, confirmation.tool));
  const scopes = offer.scopes.map((one) => h("option", { value: one }, SCOPES[one]?.() ?? one));
  const scope = h("select", { class: "input", name: "scope" }, ...scopes);
  const longest = Number(JSON.stringify(offer.max_ttl)) / DAY; // numbers of a confirmation keep their text
  const ttl = h("input", { class: "input", name: "ttl", value: `${Math.min(7, longest)}d` });
  const rate = h("input", { class: "input", name: "at_most", value: "10/day" });
  const read = () => {
    const chosen = /** @type {ReturnType<typeof widthChoice>} */ (widths.find((one) => one.radio.checked));
    const remember = { width: chosen.width, for: scope.value, ttl: ttl.value.trim(), when: chosen.when() };
    return { ...remember, at_most: chosen.width === "call" ? null : rate.value.trim() || null };
  };
  const look = async () => {
    rate.disabled = /** @type {HTMLInputElement} */ (widths[0]?.radio).checked;
    try {
      const body = { confirmation_id: confirmation.id, remember: read() };
      const found = await post(apiPath`/runs/${runId}/grant-preview`, body);
      fill(fault);
      fill(count, matches(found));
    } catch (error) {
      fill(count);
      fill(fault, /** @type {Error} */ (error).message);
    }
  };
  const send = (/** @type {Event} */ event) => {
    event.preventDefault();
    close();
    approve(read());
  };
  const form = h(
    "form.remember.in",
    { onsubmit: send, onchange: () => void look() },
    h("h2.h15", t("Approve and remember")),
    ...widths.map((one) => one.element),
    h("div.row.wrap", field(t("Applies in"), scope), field(t("Time to live"), ttl), field(t("At most"), rate)),
    count,
    fault,
    h(
      "p.row",
      h("button.btn.primary", { type: "submit", "data-act": "send" }, t("Approve and remember")),
      h("button.btn", { type: "button", onclick: () => close() }, t("Cancel")),
    ),
  );
  const close = openDialog(form, { label: t("Approve and remember") });
  void look();
}

/** @param {string} label @param {HTMLElement} input */
const field = (label, input) => h("label.field", h("span.label", label), input);

/** @param {{days: number, calls: number, matched: number, rejected: number}} found */
function matches({ days, calls, matched, rejected }) {
  const text = t("In the last {days} days: {matched} of {calls} calls.", { days, matched, calls });
  return rejected ? [text, " ", h("b", t("{n} of them were rejected.", { n: rejected }))] : [text];
}

/**
 * Return a width to choose, with its conditions to edit.
 * @param {string} width @param {Record<string, (string | number | boolean)[]>} when @param {string} tool
 */
function widthChoice(width, when, tool) {
  const radio = h("input", { type: "radio", name: "width", value: width, checked: width === "call" });
  const label = { call: t("Exactly this call"), arguments: t("Calls with these arguments") }[width];
  const rows = Object.entries(when).flatMap(([name, listed]) =>
    listed.map((one) => {
      const value = typeof one === "string" ? one : JSON.stringify(one);
      return { name, field: h("input", { class: "input", "aria-label": name, value }) };
    }),
  );
  const use = () => void (radio.checked = true);
  const fields = rows.map(({ name, field }) => h("label.row", h("code", visible(name)), field));
  const title = h("label.row", radio, label ?? tParts("Every call of {tool}", { tool: h("code", visible(tool)) }));
  const element = h("div", title, h("div.when", { oninput: use }, fields));
  const conditions = () => {
    /** @type {Record<string, string[]>} */
    const read = {};
    for (const { name, field } of rows) if (field.value.trim()) (read[name] ??= []).push(field.value.trim());
    return width === "arguments" ? read : null;
  };
  return { width, radio, element, when: conditions };
}
