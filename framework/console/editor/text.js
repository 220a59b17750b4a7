/** A text field with line numbers and colours: a textarea over the same text with colours, in one scrolling box. */

import { h } from "../core/dom.js";
import { highlight } from "./highlight.js";

/** @typedef {import("../types.d.ts").Problem} Problem */

const LINE = 20;
const COLOURED = 5000;
const WIDE = /[\u1100-\u115f\u2e80-\ua4cf\uac00-\ud7a3\uf900-\ufaff\uff00-\uff60]/g;

export class TextField {
  /** @param {string} path @param {() => void} onInput */
  constructor(path, onInput) {
    this.path = path;
    this.onInput = onInput;
    /** @type {Problem[]} */
    this.problems = [];
    this.marked = 0;
    this.area = h("textarea", { spellcheck: "false", autocomplete: "off", autocapitalize: "off", wrap: "off",
      "aria-label": path, "aria-autocomplete": "list" });
    this.layer = h("code.code", { "aria-hidden": "true" });
    this.element = h("div.src", h("div.layers", this.layer, this.area));
    this.area.addEventListener("input", () => (this.draw(), this.onInput()));
    this.area.addEventListener("keydown", (event) => this.#newLine(event));
    for (const type of ["keyup", "click", "focus", "blur"]) this.area.addEventListener(type, () => this.drawLine());
  }

  get text() {
    return this.area.value;
  }

  /** Put another text into the field, as if it had been opened. @param {string} text */
  reset(text) {
    this.area.value = text;
    this.area.setSelectionRange(0, 0);
    this.draw();
  }

  /**
   * Replace a part of the text, so that the browser can undo it.
   * @param {import("./edits.js").Edit} edit
   */
  edit({ from, to, text }) {
    this.area.focus();
    this.area.setSelectionRange(from, to);
    const done = text ? document.execCommand("insertText", false, text) : document.execCommand("delete");
    if (done) return;
    this.area.setRangeText(text, from, to, "end");
    this.area.dispatchEvent(new Event("input"));
  }

  /** @param {readonly Problem[]} problems */
  mark(problems) {
    this.problems = [...problems];
    this.draw();
  }

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
    this.marked = line;
    this.draw();
    this.element.scrollTop = Math.max(0, (line - 1) * LINE - this.element.clientHeight / 3);
  }

  /** The place of an offset, in characters and pixels: wide characters count twice. @param {number} offset */
  placeOf(offset) {
    const lines = this.text.slice(0, offset).split("\n");
    const [last] = lines.slice(-1);
    return { left: `${last.length + (last.match(WIDE)?.length ?? 0)}ch`, top: `${lines.length * LINE}px` };
  }

  draw() {
    const lines = this.text.split("\n").length > COLOURED ? null : highlight(this.text, this.path);
    const shown = lines ?? this.text.split("\n").map((text) => [["", text]]);
    this.layer.replaceChildren(...shown.map((tokens, i) => this.#line(tokens, i + 1)));
    this.drawLine();
  }

  drawLine() {
    this.layer.querySelector(".cur")?.classList.remove("cur");
    if (document.activeElement === this.area) this.layer.children[this.line - 1]?.classList.add("cur");
  }

  /** @param {string[][]} tokens @param {number} number */
  #line(tokens, number) {
    const found = this.problems.filter(({ line }) => line === number);
    const node = h("span.l", { "data-n": number });
    for (const [kind, text] of tokens) node.append(kind ? h("span", { class: kind }, text) : text);
    if (!found.length) return (node.classList.toggle("hit0", number === this.marked), node);
    node.classList.add("hit", found.some(({ severity }) => severity === "error") ? "k-danger" : "k-warn");
    node.append(h("span.why", found[0].message));
    return node;
  }

  /** Keep the indentation on a new line. @param {KeyboardEvent} event */
  #newLine(event) {
    if (event.key !== "Enter" || event.isComposing || event.shiftKey || event.ctrlKey || event.altKey) return;
    if (event.defaultPrevented || this.area.readOnly) return;
    const { selectionStart: from, selectionEnd: to } = this.area;
    const line = this.text.slice(this.text.lastIndexOf("\n", from - 1) + 1, from);
    const deeper = /:\s*$/.test(line) && !this.path.endsWith(".j2") ? "  " : "";
    const indent = /^\s*/.exec(line)?.[0] ?? "";
    event.preventDefault();
    this.edit({ from, to, text: `\n${indent}${deeper}` });
  }
}
