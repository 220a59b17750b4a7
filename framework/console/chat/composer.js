/** The message box: text that is kept until it is sent, the agent, and the inputs that the agent requires. */

import { apiPath, connection, get } from "../core/api.js";
import { Component, define } from "../core/component.js";
import { fill, h } from "../core/dom.js";
import { t } from "../core/i18n.js";
import { icon } from "../core/icons.js";
import { identity, may } from "../core/live.js";
import { menu } from "../widgets/menu.js";
import { draft, saveDraft } from "./memory.js";

/** @typedef {{name: string, description: string}} Agent */
/**
 * @typedef {{text: string, agent: string | null, inputs?: Record<string, unknown>, key: string,
 *   edited: string}} Outgoing edited: the run whose message it replaces, if any
 */

export class ChatComposer extends Component {
  /** @type {string | null} */
  #conversation = null;
  /** @type {string | null} */
  #agent = null;
  /** @type {Agent[]} */
  agents = [];
  #busy = false;
  #text = h("textarea", { id: "msg", rows: 1, placeholder: t("Write a message; @ names an agent") });
  #chosen = h("button.pick.dash", { "aria-label": t("Agent") });
  #send = h("button", { class: "btn primary sm", "aria-label": t("Send") }, icon("send"));
  #edited = "";
  #before = "";
  #editing = h("div.row.small.editing", { hidden: true });
  #hint = h("span.small.dim.not-s");
  #inputs = h("div.inputs");
  #names = h("div.menu.names", { role: "listbox", "aria-label": t("Agents"), hidden: true });
  /** @param {Agent[]} _agents those that a message can name */
  onAgents = (_agents) => {};
  /** @param {Outgoing} _message */
  onSend = (_message) => {};

  start() {
    const label = h("label.sr", { for: "msg" }, t("Message"));
    const row = h("div.row", this.#chosen, h("span.grow"), this.#hint, this.#send);
    fill(this, h("div.box", label, this.#names, this.#editing, this.#inputs, this.#text, row));
    menu(this.#chosen, () => this.#choices());
    this.on(this.#text, "input", () => this.#typed());
    this.on(this.#text, "keydown", (event) => this.#key(event));
    this.on(this.#send, "click", () => void this.#submit());
    this.watch(connection, () => this.#update());
    this.watch(identity, (me) => {
      const names = me?.agents?.map((name) => ({ name, description: "" }));
      const known = (/** @type {Agent[]} */ agents) => this.onAgents((this.agents = agents));
      if (me && may("read")) void this.load(get("/agents"), ({ agents }) => known(agents), () => {});
      else known(names ?? []);
      this.#update();
    });
  }

  /** @param {string | null} id the conversation that messages go to @param {string | null} agent */
  show(id, agent) {
    const { text, agent: before } = draft(id);
    this.#conversation = id;
    this.#edited = "";
    this.#editing.hidden = true;
    this.#text.value = text;
    this.choose(agent ?? before);
    fill(this.#names);
    this.#names.hidden = true;
  }

  /** @param {boolean} busy whether a run is in progress, so that messages wait for it */
  set busy(busy) {
    this.#busy = busy;
    this.#update();
  }

  focus() {
    this.#text.focus();
  }

  /** @param {string} text */
  write(text) {
    this.#text.value = text;
    this.#typed();
    this.focus();
  }

  /**
   * Edit a message that was sent. Its new text goes to a new conversation with the history before it.
   * @param {string} text @param {string} run
   */
  edit(text, run) {
    if (!this.#edited) this.#before = this.#text.value;
    this.#edited = run;
    const leave = h("button.btn.sm.ghost", { onclick: () => this.#leave() }, t("Cancel"));
    const about = t("Editing a message: the new text begins a copy of the conversation before it.");
    fill(this.#editing, icon("edit", { size: 14 }), h("span.grow", about), leave);
    this.#editing.hidden = false;
    this.write(text);
  }

  /** End the editing, with the text that was typed before it. */
  #leave() {
    this.#edited = "";
    this.#editing.hidden = true;
    this.write(this.#before);
  }

  /** @param {string | null} name the agent of the next message; null: the router's choice, or the conversation's */
  choose(name) {
    this.#agent = name;
    fill(this.#chosen, icon("agents", { size: 14 }), name ?? t("auto"));
    fill(this.#inputs);
    const ask = (/** @type {any} */ agent) => this.#ask(agent.inputs ?? {});
    if (name && may("read")) void this.load(get(apiPath`/agents/${name}`), ask, () => {});
    this.#save();
    this.#update();
  }

  #choices() {
    const auto = { label: t("auto: chosen by what you write"), checked: !this.#agent, run: () => this.choose(null) };
    const checked = this.#agent;
    const choice = (/** @type {Agent} */ { name }) => ({
      label: name,
      checked: name === checked,
      run: () => this.choose(name),
    });
    return [auto, ...this.agents.map(choice)];
  }

  /** @param {Record<string, {type: string, required?: boolean, description?: string}>} inputs */
  #ask(inputs) {
    const fields = Object.entries(inputs).filter(([, { required }]) => required);
    fill(this.#inputs, fields.map(([name, { type, description }]) => {
      const props = { id: `in-${name}`, name, "data-type": type, placeholder: description || type, required: true };
      return [h("label.mono", { for: props.id }, name), h("input.input", props)];
    }));
  }

  /** @returns {Record<string, unknown> | undefined | null} null: a value is missing or is not of its type */
  #values() {
    const fields = [...this.#inputs.querySelectorAll("input")];
    /** @type {Record<string, unknown>} */
    const values = {};
    for (const field of fields) {
      const value = field.dataset.type === "string" ? field.value || undefined : fromJson(field.value);
      field.setAttribute("aria-invalid", String(value === undefined));
      if (value === undefined) return field.focus(), null;
      values[field.name] = value;
    }
    return fields.length ? values : undefined;
  }

  #typed() {
    this.#save();
    this.#update();
    const typed = /^@([\w.-]*)$/.exec(this.#text.value)?.[1];
    const found = typed === undefined ? [] : this.agents.filter(({ name }) => name.startsWith(typed)).slice(0, 8);
    this.#names.hidden = !found.length;
    const option = (/** @type {Agent} */ { name, description }, /** @type {number} */ i) => {
      const onclick = () => this.#named(name);
      const props = { role: "option", "aria-selected": String(!i), "data-name": name, onclick };
      return h("div", props, icon("agents"), h("b", name), h("span.dim.cut", description));
    };
    fill(this.#names, found.map(option));
  }

  /** @param {string} name */
  #named(name) {
    this.#text.value = this.#text.value.replace(/^@[\w.-]*\s*/, "");
    this.#names.hidden = true;
    this.choose(name);
    this.focus();
  }

  /** @param {KeyboardEvent} event */
  #key(event) {
    if (event.isComposing) return;
    if (!this.#names.hidden) return this.#keyInNames(event);
    if (event.key === "Escape" && this.#edited) return event.stopPropagation(), this.#leave();
    if (event.key === "Escape") return this.#text.blur(); // then the keys of an approval act
    if (event.key !== "Enter" || event.shiftKey) return;
    event.preventDefault();
    void this.#submit();
  }

  /** @param {KeyboardEvent} event */
  #keyInNames(event) {
    const options = [...this.#names.children];
    const at = options.findIndex((each) => each.getAttribute("aria-selected") === "true");
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    const next = (at + (step ?? 0) + options.length) % options.length;
    if (step) options.forEach((each, i) => each.setAttribute("aria-selected", String(i === next)));
    else if (event.key === "Enter" || event.key === "Tab") this.#named(options[at].getAttribute("data-name") ?? "");
    else if (event.key === "Escape") this.#names.hidden = true;
    else return;
    event.preventDefault();
    event.stopPropagation();
  }

  #submit() {
    const named = /^@([\w.-]+)\s+(?=\S)/.exec(this.#text.value)?.[1];
    if (named && this.agents.some(({ name }) => name === named)) this.#named(named);
    const text = this.#text.value.trim();
    const inputs = this.#values();
    if (!text || inputs === null || this.#send.disabled) return;
    const { key, sent } = draft(this.#conversation);
    const same = JSON.stringify([text, this.#agent, inputs]);
    // The same text after a reload is the same message: its key begins no second run.
    const own = key && sent === same ? key : crypto.randomUUID();
    const edited = this.#edited;
    if (edited) this.#leave();
    else {
      saveDraft(this.#conversation, { text, agent: this.#agent, key: own, sent: same });
      this.#text.value = "";
    }
    this.onSend({ text, agent: this.#agent, inputs, key: own, edited });
    this.#update();
  }

  /** The message was accepted, so its text need not be kept. @param {string | null} id its conversation */
  accepted(id) {
    saveDraft(this.#conversation, { text: "", agent: null });
    this.#conversation = id;
    saveDraft(id, { text: this.#text.value, agent: this.#agent });
  }

  #save() {
    const { key, sent } = draft(this.#conversation);
    saveDraft(this.#conversation, { text: this.#text.value, agent: this.#agent, key, sent });
  }

  #update() {
    const lost = connection.value === "lost";
    const allowed = may("chat") || !identity.value;
    this.#send.disabled = lost || !allowed || !this.#text.value.trim();
    const busy = t("A run is in progress: the message waits for it");
    const ways = this.#busy ? busy : t("Enter sends, Shift Enter a new line");
    this.#hint.textContent = allowed ? ways : t("This key may not send messages");
  }
}

/** @param {string} text */
function fromJson(text) {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}

define("chat-composer", ChatComposer);
