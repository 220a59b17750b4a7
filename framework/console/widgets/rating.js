/** Rates the answer of a run: up or down at once, then a comment if there is something to say. */

import { apiPath, del, put } from "../core/api.js";
import { h } from "../core/dom.js";
import { t } from "../core/i18n.js";
import { icon } from "../core/icons.js";
import { openDialog } from "./dialog.js";
import { toast } from "./toast.js";

/** @typedef {import("../types.d.ts").Rating} Rating */
/** @typedef {{runId: string, rating: Rating | null, onChange: (rating: Rating | null) => void}} Rated */

const MOST_CHARS = 4000;

/**
 * Return the two buttons that rate an answer. The pressed one opens the comment again.
 * @param {Rated} rated
 */
export function ratingButtons(rated) {
  return [button(rated, "up", t("Good answer")), button(rated, "down", t("Bad answer"))];
}

/** @param {Rated} rated @param {"up" | "down"} value @param {string} label */
function button(rated, value, label) {
  const pressed = String(rated.rating?.value === value);
  const onclick = () => void rate(rated, value);
  return h("button.ib", { title: label, "aria-label": label, "aria-pressed": pressed, onclick }, ratingIcon(value));
}

/** @param {"up" | "down"} value */
export const ratingIcon = (value) => icon(value === "up" ? "up" : "downvote");

/** @param {Rated} rated @param {"up" | "down"} value */
async function rate(rated, value) {
  const { runId, onChange } = rated;
  const same = rated.rating?.value === value;
  const rating = same ? rated.rating : await save(runId, value, rated.rating?.comment ?? "");
  if (!rating) return;
  if (!same) onChange(rating);
  askWhy({ ...rated, rating });
}

/** @param {Rated} rated */
function askWhy({ runId, rating, onChange }) {
  const { value, comment } = /** @type {Rating} */ (rating);
  const title = value === "up" ? t("Good answer") : t("Bad answer");
  const field = h("textarea", { class: "input", rows: 4, maxlength: MOST_CHARS, id: "why" });
  field.value = comment;
  const act = async () => {
    const saved = await save(runId, value, field.value);
    if (saved) onChange(saved), close();
  };
  const remove = async () => {
    const done = await del(apiPath`/runs/${runId}/rating`).catch(failed);
    if (done) onChange(null), close();
  };
  const onkeydown = (/** @type {KeyboardEvent} */ event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) void act();
  };
  const about = h("span.sec", t("Why? Optional: it becomes part of a test case."));
  const label = h("label.field", { for: "why" }, about, field);
  const text = h("div.in", { onkeydown }, h("h2.h15.row", ratingIcon(value), title), label);
  const buttons = [
    h("button.btn.ghost", { onclick: () => void remove() }, t("Remove the rating")),
    h("span.grow"),
    h("button.btn", { onclick: () => close() }, t("Close")),
    h("button.btn.primary", { onclick: () => void act() }, t("Save")),
  ];
  const close = openDialog(h("section", text, h("footer", buttons)), { label: title });
}

/** @param {string} runId @param {"up" | "down"} rating @param {string} comment @returns {Promise<Rating | null>} */
async function save(runId, rating, comment) {
  const found = await put(apiPath`/runs/${runId}/rating`, { rating, comment }).catch(failed);
  return found?.rating ?? null;
}

/** @param {Error} error */
const failed = (error) => (toast({ title: error.message, tone: "danger" }), null);
