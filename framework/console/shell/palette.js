/** The palette: finds pages, agents, conversations, runs and actions, and opens them. A combobox with a list. */

import { fill, h } from "../core/dom.js";
import { t } from "../core/i18n.js";
import { icon } from "../core/icons.js";
import { openDialog } from "../widgets/dialog.js";
import { ownCommands, storedCommands } from "./commands.js";

/** @typedef {import("./commands.js").Command} Command */

const MOST = 30;
const MOST_OF_A_GROUP = 8;
/** Milliseconds after the last key until the server is asked. */
const PAUSE = 200;
let isOpen = false;

export function openPalette() {
  if (isOpen) return;
  isOpen = true;
  const leaves = new AbortController();
  const onClose = () => {
    isOpen = false;
    leaves.abort();
  };
  const palette = new Palette(() => close(), leaves.signal);
  const close = openDialog(palette.node, { label: t("Search or run a command"), kind: "palette", onClose });
}

class Palette {
  /** @type {Command[]} */
  #commands = ownCommands();
  /** @type {Command[]} */
  #found = [];
  #selected = 0;
  #timer = 0;
  #close;
  #signal;

  /** @param {() => void} close @param {AbortSignal} signal */
  constructor(close, signal) {
    this.#close = close;
    this.#signal = signal;
    const label = t("Search or run a command");
    this.input = h("input", { role: "combobox", "aria-expanded": "true", "aria-controls": "palette-found" });
    this.input.setAttribute("aria-label", label);
    this.input.placeholder = label;
    this.input.addEventListener("input", () => this.#typed());
    this.input.addEventListener("keydown", (event) => this.#press(event));
    this.list = h("div.found#palette-found", { role: "listbox", "aria-label": t("Found") });
    const none = t("Nothing matches. Try a name, a run's id, or fewer words.");
    this.none = h("p.in.sec", { role: "status", hidden: true }, none);
    this.node = h("div", h("div.q", icon("search"), this.input, h("kbd", "Esc")), this.list, this.none);
    this.#show();
    void this.#ask();
  }

  #typed() {
    this.#show();
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => void this.#ask(this.input.value.trim()), PAUSE);
  }

  /** Ask the server, which searches all conversations and runs. @param {string} [q] */
  async #ask(q) {
    const found = await storedCommands(this.#signal, q).catch(() => []);
    if (q && q !== this.input.value.trim()) return;
    this.#commands = [...this.#commands.filter((known) => !known.q), ...found];
    this.#show(this.#found[this.#selected]);
  }

  /** @param {Command} [selected] what stays selected */
  #show(selected) {
    const words = this.input.value.toLowerCase().split(/\s+/).filter(Boolean);
    this.#found = matching(this.#commands, words);
    this.none.hidden = this.#found.length > 0;
    const names = [...new Set(this.#found.map(({ group }) => group))];
    fill(this.list, names.map((name) => this.#group(name, words)));
    this.#select(this.#found.findIndex((command) => command === selected));
  }

  /** @param {string} name @param {string[]} words */
  #group(name, words) {
    const rows = this.#found.map((command, number) => {
      if (command.group !== name) return null;
      const onclick = () => this.#run(number);
      const keys = command.keys?.map((key) => h("kbd", key));
      const note = command.note ? h("span.dim.small.cut", command.note) : null;
      const label = h("span.grow.cut", marked(command.label, words));
      return h(`div#palette-${number}`, { role: "option", onclick }, icon(command.icon), label, note, keys);
    });
    return h("div", { role: "group", "aria-label": name }, h("h2", { "aria-hidden": "true" }, name), rows);
  }

  /** @param {number} number */
  #select(number) {
    this.#selected = Math.max(0, Math.min(number, this.#found.length - 1));
    for (const row of this.list.querySelectorAll("[role=option]")) {
      const on = row.id === `palette-${this.#selected}`;
      row.setAttribute("aria-selected", String(on));
      if (on) row.scrollIntoView({ block: "nearest" });
    }
    this.input.setAttribute("aria-activedescendant", this.#found.length ? `palette-${this.#selected}` : "");
  }

  /** @param {KeyboardEvent} event */
  #press(event) {
    const step = { ArrowDown: 1, ArrowUp: -1, PageDown: 8, PageUp: -8 }[event.key];
    if (step) this.#select(this.#selected + step);
    else if (event.key === "Enter" && !event.isComposing) this.#run(this.#selected);
    else return;
    event.preventDefault();
  }

  /** @param {number} number */
  #run(number) {
    const command = this.#found[number];
    if (!command) return;
    this.#close();
    command.run();
  }
}

/**
 * Return the commands that contain all words; those that begin with the first one come first in their group.
 * @param {Command[]} commands
 * @param {string[]} words in lower case
 */
function matching(commands, words) {
  /** @type {Map<string, Command[]>} */
  const groups = new Map();
  for (const command of commands) {
    const text = `${command.label} ${command.note ?? ""}`.toLowerCase();
    if (command.q || words.every((word) => text.includes(word))) {
      const group = groups.get(command.group) ?? [];
      if (group.some(({ label, note }) => label === command.label && note === command.note)) continue;
      groups.set(command.group, [...group, command]);
    }
  }
  const first = words[0] ?? "";
  const starts = (/** @type {Command} */ { label }) => Number(!label.toLowerCase().startsWith(first));
  const sorted = [...groups.values()].map((group) => group.sort((a, b) => starts(a) - starts(b)));
  return sorted.flatMap((group) => group.slice(0, MOST_OF_A_GROUP)).slice(0, MOST);
}

/**
 * Return a text with the words that were typed marked.
 * @param {string} text
 * @param {string[]} words
 */
function marked(text, words) {
  if (!words.length) return text;
  const escaped = words.map((word) => word.replace(/[.*+?^${}()|[\]\\]/g, "\\$&"));
  const pieces = text.split(new RegExp(`(${escaped.join("|")})`, "i"));
  return pieces.map((piece, i) => (i % 2 ? h("mark", piece) : piece));
}
