/** The editor's text field of a console without libraries; `libraries/code-field.js` is the other one. */

import { h } from "../core/dom.js";
import { loadCodeField } from "../core/libraries.js";

/** @typedef {import("../types.d.ts").Problem} Problem */
/** @typedef {import("./edits.js").Edit} Edit */
/** @typedef {import("./complete.js").Completion} Completion */
/**
 * @typedef {{onInput: () => void, complete: (text: string, offset: number) => Completion, readOnly: boolean}} Options
 */
/** @typedef {TextField | import("../libraries/code-field.js").CodeField} Field */

const LINE = 20;

/** Return the class of the field: the plain one is enough where the script of the other one cannot be loaded. */
export const loadField = async () =>
  (await loadCodeField?.().catch(() => null))?.CodeField ?? TextField;

class TextField {
  /** @param {string} path @param {Options} options */
  constructor(path, { onInput, readOnly }) {
    this.area = h("textarea", { spellcheck: "false", autocomplete: "off", autocapitalize: "off", wrap: "off",
      "aria-label": path, readonly: readOnly, oninput: onInput });
    this.element = h("div.src", this.area);
  }

  get text() {
    return this.area.value;
  }

  /** Put another text into the field, as if it had been opened. @param {string} text */
  reset(text) {
    this.area.value = text;
    this.area.setSelectionRange(0, 0);
  }

  /** Replace a part of the text, so that it can be undone. @param {Edit} edit */
  edit({ from, to, text }) {
    this.area.focus();
    this.area.setSelectionRange(from, to);
    const done = text ? document.execCommand("insertText", false, text) : document.execCommand("delete");
    if (done) return;
    this.area.setRangeText(text, from, to, "end");
    this.area.dispatchEvent(new Event("input"));
  }

  /** Show problems beside their lines: not here, where only the list has them. @param {readonly Problem[]} _ */
  mark(_) {}

  /** The line of the cursor, from 1. */
  get line() {
    return this.text.slice(0, this.area.selectionStart).split("\n").length;
  }

  get place() {
    const column = this.area.selectionStart - this.text.lastIndexOf("\n", this.area.selectionStart - 1);
    return { line: this.line, column };
  }

  /**
   * Scroll to a line, and put the cursor there.
   * @param {number} line
   * @param {number} [column]
   * @param {boolean} [focus]
   */
  goTo(line, column = 1, focus = true) {
    const lines = this.text.split("\n");
    const at = lines.slice(0, line - 1).join("\n").length + (line > 1 ? 1 : 0) + column - 1;
    this.area.setSelectionRange(at, at);
    if (focus) this.area.focus({ preventScroll: true });
    this.area.scrollTop = Math.max(0, (line - 1) * LINE - this.area.clientHeight / 3);
  }
}
