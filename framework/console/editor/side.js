/** What an edit would do, and the settings of an agent that are chosen rather than written. */

import { fill, h } from "../core/dom.js";
import { t, tn } from "../core/i18n.js";
import { icon } from "../core/icons.js";
import { changeList, effectTags } from "../widgets/changes.js";
import { resolve } from "./complete.js";
import { allowPath, listItems, setItem, setValue } from "./edits.js";
import { find, unquote } from "./yaml.js";

/** @typedef {import("../types.d.ts").CheckedConfig} CheckedConfig */
/** @typedef {import("../types.d.ts").Problem} Problem */

/** Limits by their key, with their older spelling. */
const LIMITS = {
  steps: "max_steps", tool_calls: "max_tool_calls", tokens: "max_total_tokens", cost_usd: "max_cost_usd",
  timeout: "timeout",
};

/**
 * Show what the checked text would do.
 * @param {HTMLElement} node
 * @param {CheckedConfig | null} check
 * @param {readonly Problem[]} problems
 * @param {(problem: Problem) => Element} row
 */
export function drawOutcome(node, check, problems, row) {
  const errors = problems.filter(({ severity }) => severity === "error").length;
  const text = !check ? t("Checked as you type.") : errors
    ? tn(errors, "Would not go live: 1 problem is left.", "Would not go live: {n} problems are left.")
    : check.changes.length ? t("Would go live.") : t("Changes no setting of an agent.");
  fill(node,
    h("div.sec-b", h("p", { class: errors ? "strong" : "sec" }, text)),
    problems.length > 0 && h("div.sec-b", h("h2", t("Problems")), h("ul.probs", problems.map(row))),
    check && check.changes.length > 0 &&
      h("div.sec-b", h("h2", h("span.grow", t("Changes")), effectTags(check.changes)), changeList(check.changes)));
}

/**
 * Show model, limits and tools of an agent file. A choice changes its value in the text, and nothing else.
 * @param {HTMLElement} node
 * @param {string} text
 * @param {Record<string, any>} schema
 * @param {((edit: import("./edits.js").Edit) => void) | null} onEdit null: nothing can be changed
 */
export function drawForm(node, text, schema, onEdit) {
  if (node.contains(document.activeElement) && document.activeElement?.matches("input")) return;
  const focused = node.contains(document.activeElement) ? document.activeElement?.textContent : null;
  const policy = Object.entries(LIMITS).map(([key, older]) => {
    const path = find(text, ["runtime_policy"]) ? ["runtime_policy", older] : ["limits", key];
    return field(path[1], path, text, onEdit);
  });
  fill(node,
    h("div.sec-b", h("h2", t("Model and limits")),
      h("div.lims", field("model", ["model"], text, onEdit, namesOf(schema, ["model"])), policy)),
    h("div.sec-b", h("h2", t("Tools")), chips(text, schema, onEdit),
      h("p.small.dim", t("What is not allowed is not offered to the model."))));
  if (focused) [...node.querySelectorAll("button")].find((button) => button.textContent === focused)?.focus();
}

/**
 * Return the names that a schema suggests.
 * @param {Record<string, any>} schema
 * @param {readonly string[]} path
 * @returns {string[]}
 */
const namesOf = (schema, path) => [...new Set(resolve(schema, path).flatMap((one) => one.enum ?? []))];

/**
 * @param {string} name
 * @param {readonly string[]} path
 * @param {string} text
 * @param {((edit: import("./edits.js").Edit) => void) | null} onEdit
 * @param {readonly string[]} [suggestions]
 */
function field(name, path, text, onEdit, suggestions = []) {
  const entry = find(text, path);
  const value = entry ? unquote(text.slice(entry.value, entry.end)) : "";
  const options = suggestions.map((one) => h("option", { value: one }));
  const list = options.length ? h("datalist", { id: `of-${name}` }, options) : null;
  const onchange = (/** @type {any} */ { target }) => target.value && onEdit?.(setValue(text, path, target.value));
  const props = { value, placeholder: t("default"), list: list && `of-${name}`, readonly: !onEdit, onchange };
  const input = h("input.input.mono", { ...props, "aria-label": name });
  return [h("code.dim", name), h("span", input, list)];
}

/**
 * @param {string} text
 * @param {Record<string, any>} schema
 * @param {((edit: import("./edits.js").Edit) => void) | null} onEdit
 */
function chips(text, schema, onEdit) {
  const path = allowPath(text);
  const chosen = listItems(text, path) ?? [];
  const names = [...new Set([...chosen, ...namesOf(schema, ["tools", "*"])])].sort();
  return h("div.chips", { role: "group", "aria-label": t("Allowed tools") }, names.map((name) => {
    const on = chosen.includes(name);
    const covered = !on && chosen.some((one) => one.includes("*") && globs(one, name));
    const toggle = () => {
      const edit = setItem(text, path, name, !on);
      if (edit) onEdit?.(edit);
    };
    const props = { "aria-pressed": String(on), disabled: !onEdit, onclick: toggle };
    const hint = covered ? { title: t("Allowed by a pattern"), class: "covered" } : {};
    return h("button.chip.mono", { ...props, ...hint }, on ? icon("check") : null, name);
  }));
}

/** @param {string} pattern @param {string} name */
function globs(pattern, name) {
  const source = pattern.replace(/[.+^${}()|[\]\\]/g, "\\$&").replaceAll("*", ".*").replaceAll("?", ".");
  return new RegExp(`^${source}$`).test(name);
}
