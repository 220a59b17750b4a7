/** The list of completions at the cursor: arrows choose, Enter or Tab takes, Escape closes. */

import { h } from "../core/dom.js";
import { t } from "../core/i18n.js";

/** @typedef {import("./complete.js").Completion} Completion */

const DELAY = 80;
const ROWS = 8;

export class Completions {
  /**
   * @param {import("./text.js").TextField} field
   * @param {(text: string, offset: number) => Completion} complete
   */
  constructor(field, complete) {
    this.field = field;
    this.complete = complete;
    /** @type {Completion | null} */
    this.found = null;
    this.at = 0;
    this.timer = 0;
    this.list = h("ul", { role: "listbox", "aria-label": t("Completions"), id: "completions" });
    this.about = h("div.about");
    this.element = h("div.pop", { hidden: true }, this.list, this.about);
    const { area } = field;
    area.addEventListener("keydown", (event) => this.#key(event), true); // before the field adds a line
    area.addEventListener("blur", () => setTimeout(() => this.close(), 150));
    area.addEventListener("click", () => this.close());
    area.addEventListener("input", (event) => this.#later(/** @type {InputEvent} */ (event)));
  }

  close() {
    clearTimeout(this.timer);
    this.found = null;
    this.element.hidden = true;
    this.field.area.removeAttribute("aria-activedescendant");
  }

  /** @param {boolean} asked with Ctrl Space, and not by typing */
  open(asked) {
    const { area } = this.field;
    const found = this.complete(area.value, area.selectionStart);
    if (area.readOnly || !found.options.length || (!asked && !found.word)) return this.close();
    this.found = { ...found, options: found.options.slice(0, 50) };
    this.at = 0;
    for (const [name, value] of Object.entries(this.field.placeOf(found.from))) {
      this.element.style.setProperty(name, value);
    }
    this.element.hidden = false;
    this.#draw();
  }

  /** @param {InputEvent} event */
  #later(event) {
    clearTimeout(this.timer);
    const typed = event.inputType?.startsWith("insert") && (event.data ?? "").length === 1;
    if (!typed && !this.found) return;
    this.timer = setTimeout(() => this.open(false), DELAY);
  }

  /** @param {KeyboardEvent} event */
  #key(event) {
    if (event.key === " " && event.ctrlKey) this.open(true);
    else if (!this.found || event.isComposing) return;
    else if (event.key === "ArrowDown" || event.key === "ArrowUp") this.#move(event.key === "ArrowDown" ? 1 : -1);
    else if (event.key === "Enter" || event.key === "Tab") this.#take(this.at);
    else if (event.key === "Escape") this.close();
    else if (["ArrowLeft", "ArrowRight", "Home", "End"].includes(event.key)) return this.close();
    else return;
    event.preventDefault();
    event.stopPropagation();
  }

  /** @param {number} step */
  #move(step) {
    const count = this.found?.options.length ?? 1;
    this.at = (this.at + step + count) % count;
    this.#draw();
  }

  /** @param {number} index */
  #take(index) {
    const { found } = this;
    this.close();
    if (found) this.field.edit({ from: found.from, to: found.to, text: found.options[index].insert });
    this.close();
  }

  #draw() {
    const { options, word } = /** @type {Completion} */ (this.found);
    const first = Math.max(0, Math.min(this.at - ROWS + 1, options.length - ROWS));
    const rows = options.slice(first, first + ROWS).map((option, i) => this.#row(option, first + i, word));
    this.list.replaceChildren(...rows);
    const { label, about, detail } = options[this.at];
    this.about.hidden = !about;
    this.about.replaceChildren(h("code.strong", label), h("p", about), detail ? h("p.dim", detail) : "");
    this.field.area.setAttribute("aria-activedescendant", `completion-${this.at}`);
  }

  /** @param {import("./complete.js").Option} option @param {number} index @param {string} word */
  #row({ label, detail }, index, word) {
    const at = label.toLowerCase().indexOf(word.toLowerCase());
    const parts = [label.slice(0, at), h("mark", label.slice(at, at + word.length)), label.slice(at + word.length)];
    const take = (/** @type {Event} */ event) => (event.preventDefault(), this.#take(index));
    const selected = String(index === this.at);
    return h("li", { role: "option", id: `completion-${index}`, "aria-selected": selected, onmousedown: take },
      h("span.cut", parts), h("span.dim.cut", detail));
  }
}
