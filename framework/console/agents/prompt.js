/** The system prompt: rendered with sample inputs as they are typed, or its template with the variables marked. */

import { ApiError, apiPath, post } from "../core/api.js";
import { fill, h } from "../core/dom.js";
import { tokens } from "../core/format.js";
import { t } from "../core/i18n.js";
import { place } from "../widgets/place.js";
import { problemCard } from "../widgets/problem-card.js";
import { tabs } from "../widgets/tabs.js";
import { visible } from "../widgets/text.js";

/** @typedef {import("../types.d.ts").AgentPrompt} AgentPrompt */
/** @typedef {import("../types.d.ts").AgentDetail} AgentDetail */
/** @typedef {import("../types.d.ts").InputSpec} InputSpec */

const WAIT_MS = 200;
const JINJA = /(\{\{.*?\}\}|\{%.*?%\}|\{#.*?#\})/s;
/** @type {Record<string, [string, string]>} */
const ORIGINS = {
  input: ["plan", t("input of the request")],
  vars: ["tool", t("vars in the agent's file")],
  runtime: ["model", t("from the runtime")],
};

export class PromptView {
  #size = h("span.dim.small.prompt-size");
  #locales = h("select", { class: "pick", "aria-label": t("Language"), onchange: () => void this.#render() });
  #at = h("span");
  #text = h("div.in#prompt-text", { role: "tabpanel" });
  #form = h("div.in.stack");
  #note = h("p.ink.k-danger", { role: "alert" });
  #tab = "rendered";
  element = h("div.cols",
    h("section.card", h("header.row.wrap", this.#views(), this.#size, this.#locales, this.#at), this.#text),
    h("section.card", h("header", h("h2", t("Sample inputs"))), this.#form));
  /** @type {Record<string, unknown>} */
  #values = {};
  #timer = 0;
  #asked = new AbortController();
  #detail = /** @type {AgentDetail | null} */ (null);
  #prompt = /** @type {AgentPrompt | null} */ (null);

  /** @param {AgentDetail} detail */
  show(detail) {
    const { inputs, prompt, name } = detail;
    const before = this.#detail;
    this.#detail = detail;
    if (before?.name !== name) this.#values = {};
    if (before?.name !== name || JSON.stringify(before.inputs) !== JSON.stringify(inputs)) {
      const fields = Object.entries(inputs).map(([input, spec]) => this.#field(input, spec));
      fill(this.#form, fields.length ? fields : h("p.dim", t("This agent has no inputs.")), this.#note);
    }
    const locale = before?.name === name ? this.#locales.value : "";
    fill(this.#locales, ["", ...prompt.locales].map((value) =>
      h("option", { value, selected: value === locale }, value || t("default language"))));
    this.#locales.hidden = !prompt.locales.length;
    if (this.#locales.value || Object.keys(this.#values).length) void this.#render();
    else this.#show(prompt);
  }

  #views() {
    const views = [{ id: "rendered", label: t("Rendered") }, { id: "source", label: t("Template") }];
    const choose = (/** @type {string} */ id) => ((this.#tab = id), this.#fill());
    return tabs(views, this.#tab, choose, { kind: "seg", label: t("Views"), panel: "prompt-text" });
  }

  /** @param {string} name @param {InputSpec} spec */
  #field(name, { type, required, description, default: usual }) {
    const given = asText(this.#values[name] ?? "");
    const props = { "data-name": name, rows: 1, placeholder: asText(usual ?? `<${name}>`), value: given,
      oninput: (/** @type {any} */ event) => this.#typed(name, type, event.target.value) };
    const options = ["", "true", "false"].map((value) => h("option", { value, selected: value === given }, value));
    return h("label.field",
      h("span", h("code", name), h("span.dim.small", ` ${type} ${required ? t("required") : ""}`)),
      type === "boolean" ? h("select.input", props, options) : h("textarea.input", props),
      description ? h("small.dim", description) : null);
  }

  /** @param {string} name @param {InputSpec["type"]} type @param {string} text */
  #typed(name, type, text) {
    if (text) this.#values[name] = parsed(text, type);
    else delete this.#values[name];
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => void this.#render(), WAIT_MS);
  }

  async #render() {
    this.#asked.abort();
    this.#asked = new AbortController();
    const path = apiPath`/agents/${this.#detail?.name ?? ""}/prompt`;
    const body = { inputs: this.#values, locale: this.#locales.value || null };
    let wrong = "";
    try {
      this.#show(await post(path, body, { signal: this.#asked.signal }));
    } catch (error) {
      if (!(error instanceof ApiError)) return; // a later request took its place
      wrong = error.message;
    }
    fill(this.#note, wrong);
    for (const field of this.#form.querySelectorAll("[data-name]"))
      field.ariaInvalid = String(wrong.includes(`'${field.getAttribute("data-name")}'`));
  }

  /** @param {AgentPrompt} prompt */
  #show(prompt) {
    this.#prompt = prompt;
    const size = { n: tokens(prompt.tokens), tools: tokens(this.#detail?.policy.tools_tokens) };
    fill(this.#size, prompt.tokens && t("{n} tokens, and {tools} for tools", size));
    fill(this.#at, place(prompt.path));
    this.#fill();
  }

  #fill() {
    if (!this.#prompt) return;
    const { rendered, details, source, variables } = this.#prompt;
    fill(this.#text, this.#tab === "source" ? [h("div.prompt.mono", marked(source, variables)), legend(variables)]
      : rendered === undefined ? details && problemCard(details) : h("div.prompt", visible(rendered)));
  }
}

/** @param {string} source @param {AgentPrompt["variables"]} variables */
function marked(source, variables) {
  return source.split(JINJA).map((piece, i) => {
    /** @type {readonly string[]} */
    const names = piece.match(/\b[a-z_]\w*/gi) ?? [];
    const found = i % 2 ? variables.find(({ name }) => names.includes(name)) : null;
    return i % 2 ? h(`mark.k-${found ? ORIGINS[found.origin][0] : "none"}`, visible(piece)) : visible(piece);
  });
}

/** @param {AgentPrompt["variables"]} variables */
const legend = (variables) => h("p.small.dim.legend", Object.entries(ORIGINS).map(([id, [kind, word]]) => {
  const names = variables.flatMap(({ name, origin }) => (origin === id ? name : []));
  return names.length ? h("span", h(`mark.k-${kind}`, names.join(", ")), ` ${word}`) : null;
}));

/**
 * Return what is no JSON as text: the server says what it expects.
 * @param {string} text @param {InputSpec["type"]} type
 */
function parsed(text, type) {
  try {
    return type === "string" ? text : JSON.parse(text);
  } catch {
    return text;
  }
}

/** @param {unknown} value */
const asText = (value) => (typeof value === "string" ? value : JSON.stringify(value));
