/** What an approval asks about, and how it can be changed: arguments of a call, or steps of a plan. */

import { fill, h } from "../core/dom.js";
import { cost, tokens } from "../core/format.js";
import { t, tn } from "../core/i18n.js";
import { icon } from "../core/icons.js";
import { before } from "./approval-record.js";
import { diffView, unifiedView } from "./diff.js";
import { argumentLine, jsonBlock } from "./json.js";
import { withPlaces } from "./place.js";
import { schemaForm } from "./schema-form.js";
import { terms, textBlock, visible } from "./text.js";

/** @typedef {import("../types.d.ts").PendingConfirmation} Confirmation */
/** @typedef {import("../types.d.ts").PlanStep} PlanStep */
/**
 * @typedef {object} Body
 * @property {HTMLElement} element
 * @property {() => number} changes how much a person has changed
 * @property {() => Record<string, any>} value the changed arguments, or the changed plan
 * @property {() => string[]} problems why it cannot be sent
 * @property {() => string} action what approving does, for the button
 * @property {(on: boolean) => void} edit begin to edit, or undo all changes
 */

/**
 * Return the body of a confirmation; null if there is nothing to change.
 * @param {Confirmation} asked
 * @param {() => void} onChange
 * @returns {Body | null}
 */
export function bodyOf(asked, onChange) {
  if (asked.kind === "tool") return callBody(asked, onChange);
  if (asked.form) return formBody(asked.form, onChange);
  return asked.plan ? planBody(asked, onChange) : null;
}

/** @param {Record<string, any>} schema of a form @param {() => void} onChange @returns {Body} */
function formBody(schema, onChange) {
  const fields = Object.entries(schema.properties).map(([name, field]) => [name, withEnum(field)]);
  const given = Object.entries(schema.properties).filter(([, field]) => field.default !== undefined);
  const defaults = Object.fromEntries(given.map(([name, field]) => [name, field.default]));
  const form = schemaForm({ ...schema, properties: Object.fromEntries(fields) }, defaults);
  form.onChange = onChange;
  const { element, changes, value, problems } = form;
  return { element, changes, value, problems, action: () => t("Send"), edit: () => {} };
}

/** @param {Record<string, any>} field @returns {Record<string, any>} with its title, and with its choices as values */
function withEnum({ oneOf, title, ...field }) {
  const description = [title, field.description].filter(Boolean).join(": ");
  const about = description ? { ...field, description } : field;
  return oneOf ? { ...about, enum: oneOf.map((/** @type {any} */ one) => one.const) } : about;
}

/** @param {Confirmation} asked @param {() => void} onChange @returns {Body} */
function callBody(asked, onChange) {
  const element = h("div.stack");
  const difference = h("div.stack-d");
  /** @type {import("./schema-form.js").SchemaForm | null} */
  let form = null;
  const changes = () => form?.changes() ?? 0;
  const value = () => form?.value() ?? asked.arguments;
  const changed = () => {
    const n = changes();
    fill(difference, n ? [h("p.label", t("Your changes")), diffView(pretty(asked.arguments), pretty(value()))] : null);
    onChange();
  };
  /** @param {boolean} on */
  const edit = (on) => {
    form = on ? schemaForm(asked.schemas?.[asked.tool] ?? {}, asked.arguments) : null;
    if (form) form.onChange = changed;
    const preview = asked.preview ? [h("p.label", t("What it changes")), unifiedView(asked.preview)] : null;
    fill(element, form?.element ?? argumentList(asked.arguments), form ? null : preview, difference);
    changed();
  };
  edit(false);
  const action = () => withChanges(t("Approve"), changes());
  return { element, changes, value, problems: () => form?.problems() ?? [], action, edit };
}

/** @param {string} action @param {number} n */
const withChanges = (action, n) => (n ? tn(n, "Approve with 1 change", "Approve with {n} changes") : action);
/** @param {any} value */
const pretty = (value) => JSON.stringify(value, null, 2);

/** @param {Record<string, any>} args */
export function argumentList(args) {
  const rows = Object.entries(args).map(([name, value]) => {
    const shown = typeof value === "string" ? textValue(value) : jsonValue(value);
    return [h("dt.mono", visible(name)), h("dd", shown)];
  });
  return rows.length ? h("dl.form.args", rows) : h("p.dim.small", t("It has no arguments."));
}

/** @param {string} text */
function textValue(text) {
  if (/\n|.{160}/.test(text)) return textBlock(text);
  return h("p.value", text ? visible(text) : h("span.dim", t("empty")));
}

/** @param {any} value */
const jsonValue = (value) => {
  const text = JSON.stringify(value);
  return text.length < 60 ? h("p.value.mono", visible(text)) : jsonBlock(value);
};

/** @param {Confirmation} asked @param {() => void} onChange @returns {Body} */
function planBody(asked, onChange) {
  const drafts = /** @type {PlanStep[]} */ (before(asked).steps);
  /** @type {Set<string>} */
  const dropped = new Set();
  /** @type {Map<string, import("./schema-form.js").SchemaForm>} */
  const forms = new Map();
  const list = h("ol");
  const note = h("p.small.dim");
  const element = h("div.plan.pick-steps", list, note);
  const kept = () => drafts.filter(({ id }) => !dropped.has(id));
  const edited = () => kept().reduce((n, { id }) => n + (forms.get(id)?.changes() ?? 0), 0);
  const changed = () => {
    for (const row of list.children) {
      const box = /** @type {HTMLInputElement} */ (row.querySelector("input[type=checkbox]"));
      box.checked = !dropped.has(box.name);
      row.classList.toggle("old", !box.checked);
    }
    onChange();
  };
  /** @param {PlanStep} step @param {boolean} on */
  const choose = (step, on) => {
    if (on) for (const id of closure([step.id], (one) => one.depends_on)) dropped.delete(id);
    else for (const id of closure([step.id], (one) => needing(one.id))) dropped.add(id);
    changed();
  };
  /** @param {string} id */
  const needing = (id) => drafts.filter((one) => one.depends_on.includes(id)).map((one) => one.id);
  /** @param {string[]} ids @param {(step: PlanStep) => string[]} next */
  const closure = (ids, next) => {
    const found = new Set(ids);
    for (const id of found) for (const other of next(byId(id))) if (byId(other)) found.add(other);
    return found;
  };
  /** @param {string} id */
  const byId = (id) => /** @type {PlanStep} */ (drafts.find((one) => one.id === id));
  /** @param {boolean} on */
  const edit = (on) => {
    forms.clear();
    if (!on) dropped.clear();
    fill(list, drafts.map((step) => {
      const form = on && step.tool ? schemaForm(asked.schemas?.[step.tool] ?? {}, step.parameters) : null;
      if (form) forms.set(step.id, form), (form.onChange = changed);
      return stepRow(asked, step, form?.element ?? null, (checked) => choose(step, checked));
    }));
    changed();
  };
  fill(note, estimate(asked));
  edit(false);
  return {
    element,
    edit,
    changes: () => dropped.size + edited(),
    value: () => ({
      goal: asked.plan?.goal ?? "",
      steps: kept().map((step) => ({ ...step, parameters: forms.get(step.id)?.value() ?? step.parameters })),
    }),
    problems: () => [
      ...(kept().length ? [] : [t("no step is left")]),
      ...kept().flatMap(({ id }) => forms.get(id)?.problems().map((one) => `${id}: ${one}`) ?? []),
    ],
    action: () => {
      const [n, all] = [kept().length, drafts.length];
      if (edited()) return withChanges("", dropped.size + edited());
      if (n < all) return t("Approve {n} of {all} steps", { n, all });
      return tn(n, "Approve 1 step", "Approve {n} steps");
    },
  };
}

/** @type {Record<string, {kind: string, word: () => string}>} */
const VERDICTS = {
  allow: { kind: "ok", word: () => t("allowed") },
  ask: { kind: "human", word: () => t("asks again") },
  deny: { kind: "danger", word: () => t("denied") },
  open: { kind: "none", word: () => t("checked at each call") },
};

/**
 * @param {Confirmation} asked
 * @param {PlanStep} step
 * @param {HTMLElement | null} form
 * @param {(on: boolean) => void} choose
 */
function stepRow(asked, step, form, choose) {
  const check = asked.preflight?.steps.find(({ id }) => id === step.id);
  const verdict = VERDICTS[check?.verdict ?? "open"];
  const label = t("Keep step {id}", { id: step.id });
  const box = h("input", { type: "checkbox", name: step.id, checked: true, "aria-label": label });
  box.addEventListener("change", () => choose(box.checked));
  const goal = t("The model works towards this goal.");
  const call = h("span.sub.cut", step.tool ? h("code", visible(step.tool), " ", argumentLine(step.parameters)) : goal);
  return h(
    "li",
    box,
    h("span.id", step.id),
    h("span.t", visible(step.description)),
    h(`span.small.ink.k-${verdict.kind}`, { title: check?.rule ?? "" }, verdict.word()),
    form || isLong(step) ? h("div.sub", h("code", step.tool), form ?? argumentList(step.parameters)) : call,
    terms(step).map((text) => h("span.sub", text)),
    step.depends_on.length ? h("span.sub", t("after {ids}", { ids: step.depends_on.join(", ") })) : null,
    check?.waits_for.length ? h("span.sub", t("It is checked again when its arguments are known.")) : null,
    check && check.verdict !== "allow" && check.rule ? h("span.sub", withPlaces(check.rule)) : null,
    [...(check?.findings ?? []), ...(check?.risks ?? [])].map((text) => h("span.sub", icon("alert"), " ", text)),
  );
}

/** @param {PlanStep} step whether its parameters have texts of several lines, which one line cannot show */
const isLong = ({ tool, parameters }) => Boolean(tool) && JSON.stringify(parameters).includes("\\n");

/** @param {Confirmation} asked */
function estimate({ preflight }) {
  if (!preflight) return "";
  const { tool_calls, model_calls, tokens: used, cost_usd } = preflight.estimate;
  const parts = [
    tn(tool_calls, "1 tool call", "{n} tool calls"),
    tn(model_calls, "1 model call or more", "{n} model calls or more"),
    t("about {n} tokens", { n: tokens(used) }),
    ...(cost_usd === null ? [] : [cost(Number(JSON.stringify(cost_usd)))]),
  ];
  return `${parts.join(", ")}. ${t("Take a step out, and what needs it goes too.")}`;
}
