/** The editor's text field by CodeMirror: colours, completion, search, and problems beside their lines. */

import { acceptCompletion, autocompletion, completionKeymap } from "@codemirror/autocomplete";
import { defaultKeymap, history, historyKeymap } from "@codemirror/commands";
import { python } from "@codemirror/lang-python";
import { yaml } from "@codemirror/lang-yaml";
import { HighlightStyle, StreamLanguage, bracketMatching, indentUnit, syntaxHighlighting } from "@codemirror/language";
import { jinja2 } from "@codemirror/legacy-modes/mode/jinja2";
import { search, searchKeymap } from "@codemirror/search";
import { EditorState, StateEffect, StateField } from "@codemirror/state";
import { Decoration, EditorView, WidgetType, keymap } from "@codemirror/view";
import { drawSelection, highlightActiveLine, highlightActiveLineGutter, lineNumbers } from "@codemirror/view";
import { tags } from "@lezer/highlight";
import { h } from "../core/dom.js";
import { t } from "../core/i18n.js";

/** @typedef {import("../types.d.ts").Problem} Problem */
/** @typedef {import("../editor/edits.js").Edit} Edit */
/** @typedef {import("../editor/text.js").Options} Options */
/** @typedef {{problems: readonly Problem[], line: number}} Marks lines with problems, and the one that was asked for */

const MOST_OPTIONS = 50;
/** @type {Record<string, () => any>} */
const LANGUAGES = {
  j2: () => StreamLanguage.define(jinja2),
  py: python,
  yaml,
  yml: yaml,
};
const COLOURS = HighlightStyle.define([
  { tag: [tags.propertyName, tags.definition(tags.propertyName), tags.keyword, tags.tagName], color: "var(--c-key)" },
  { tag: [tags.string, tags.content, tags.special(tags.string)], color: "var(--c-str)" },
  { tag: [tags.number, tags.bool, tags.null, tags.atom], color: "var(--c-num)" },
  { tag: [tags.comment, tags.lineComment], color: "var(--ink-3)" },
  { tag: [tags.punctuation, tags.separator, tags.bracket, tags.operator, tags.meta], color: "var(--ink-2)" },
]);
const RAISED = { border: "1px solid var(--line)", background: "var(--raised)", color: "inherit" };
const THEME = EditorView.theme({
  "&": { height: "100%", color: "var(--ink-1)", background: "none" },
  "&.cm-focused": { outline: "none" },
  ".cm-scroller": { font: "inherit" },
  ".cm-content": { padding: "var(--s3) 0 60px", caretColor: "var(--ink-1)" },
  ".cm-cursor": { borderLeftColor: "var(--ink-1)" },
  ".cm-line": { padding: "0 var(--s6) 0 0" },
  ".cm-gutters": { border: 0, background: "var(--surface)", color: "var(--ink-3)" },
  ".cm-lineNumbers .cm-gutterElement": { minWidth: "44px", padding: "0 var(--s4) 0 0" },
  ".cm-activeLine, .cm-activeLineGutter": { background: "color-mix(in oklab, var(--ink-1) 4%, transparent)" },
  ".asked": { background: "color-mix(in oklab, var(--accent) 10%, transparent)" },
  ".hit": { background: "color-mix(in oklab, var(--hit) 12%, transparent)", boxShadow: "inset 2px 0 var(--hit)" },
  ".error": { "--hit": "var(--danger)" },
  ".warning": { "--hit": "var(--warn)" },
  ".why": { marginLeft: "var(--s6)", color: "var(--hit)", font: "var(--t-12)" },
  "&.cm-focused .cm-selectionBackground, .cm-selectionBackground, .cm-searchMatch": {
    background: "color-mix(in oklab, var(--accent) 24%, transparent) !important",
  },
  ".cm-tooltip": { ...RAISED, borderRadius: "var(--r-l)", boxShadow: "var(--e3)" },
  ".cm-tooltip.cm-tooltip-autocomplete > ul": { padding: "4px", fontFamily: "var(--mono)", maxHeight: "240px" },
  ".cm-tooltip.cm-tooltip-autocomplete > ul > li": { padding: "4px 8px", borderRadius: "var(--r-s)" },
  ".cm-tooltip-autocomplete ul li[aria-selected]": { background: "var(--pressed)", color: "inherit" },
  ".cm-completionMatchedText": { color: "var(--accent)", fontWeight: 600, textDecoration: "none" },
  ".cm-completionDetail": { color: "var(--ink-3)", font: "var(--t-11)", fontStyle: "normal" },
  ".cm-completionInfo": { padding: "10px 12px", maxWidth: "300px", font: "var(--t-12)", whiteSpace: "pre-line" },
  ".cm-panels": { background: "var(--raised)", color: "inherit", borderColor: "var(--line)" },
  ".cm-panel.cm-search": { font: "var(--t-12)" },
  ".cm-textfield, .cm-button": { ...RAISED, borderRadius: "var(--r-s)", backgroundImage: "none", font: "var(--t-12)" },
  ".cm-panel.cm-search [name=close]": { color: "inherit" },
});

/** @type {any} with some of the marks */
const setMarks = StateEffect.define();
/** The marks, and the decorations that show them. */
const marked = StateField.define({
  create: () => ({ problems: [], line: 0, shown: Decoration.none }),
  update(/** @type {any} */ value, /** @type {any} */ change) {
    const set = change.effects.filter((/** @type {any} */ effect) => effect.is(setMarks));
    if (set.length) {
      const next = Object.assign({}, value, ...set.map((/** @type {any} */ effect) => effect.value));
      return { ...next, shown: shownMarks(next, change.state.doc) };
    }
    // An edit moves the marks of problems along, until the text is checked again.
    return change.docChanged ? { ...value, line: 0, shown: value.shown.map(change.changes) } : value;
  },
  provide: (/** @type {any} */ field) => EditorView.decorations.from(field, (/** @type {any} */ { shown }) => shown),
});

class Why extends WidgetType {
  /** @param {string} message */
  constructor(message) {
    super();
    this.message = message;
  }

  /** @param {Why} other */
  eq(other) {
    return other.message === this.message;
  }

  toDOM() {
    return h("span.why", this.message);
  }
}

/** @param {Marks} marks @param {any} doc */
function shownMarks({ problems, line }, doc) {
  const found = problems.flatMap((problem) => {
    if (!problem.line || problem.line > doc.lines) return [];
    const { from, to } = doc.line(problem.line);
    const kind = problem.severity === "error" ? "error" : "warning";
    const isFirst = problems.find((other) => other.line === problem.line) === problem;
    const why = Decoration.widget({ widget: new Why(problem.message), side: 1 }).range(to);
    return [Decoration.line({ class: `hit ${kind}` }).range(from), ...(isFirst ? [why] : [])];
  });
  if (line > 0 && line <= doc.lines) found.push(Decoration.line({ class: "asked" }).range(doc.line(line).from));
  return Decoration.set(found, true);
}

export class CodeField {
  /** @param {string} path @param {Options} options */
  constructor(path, { onInput, complete, readOnly }) {
    this.element = h("div.src");
    // In a shadow root its styles are style sheets by script, which the content security policy allows.
    const root = this.element.attachShadow({ mode: "open" });
    const language = LANGUAGES[/[^.]*$/.exec(path)?.[0] ?? ""]?.() ?? [];
    const attributes = { "aria-label": path, ...(readOnly ? { "aria-readonly": "true" } : {}) };
    this.extensions = [
      lineNumbers(), history(), drawSelection(), highlightActiveLine(), highlightActiveLineGutter(), bracketMatching(),
      language, syntaxHighlighting(COLOURS), THEME, marked, search({ top: true }), indentUnit.of("  "),
      EditorView.lineWrapping, EditorState.phrases.of(phrases()),
      EditorState.readOnly.of(readOnly),
      EditorView.contentAttributes.of(attributes),
      EditorView.updateListener.of((/** @type {any} */ update) => update.docChanged && onInput()),
      autocompletion({ icons: false, override: [(/** @type {any} */ context) => completionOf(context, complete)] }),
      keymap.of([{ key: "Tab", run: acceptCompletion }, ...completionKeymap, ...searchKeymap, ...historyKeymap,
        ...defaultKeymap]),
    ];
    this.view = new EditorView({ parent: root, root, extensions: this.extensions });
  }

  get text() {
    return this.view.state.doc.toString();
  }

  /** Put another text into the field, as if it had been opened. @param {string} text */
  reset(text) {
    const { problems } = this.view.state.field(marked);
    this.view.setState(EditorState.create({ doc: text, extensions: this.extensions }));
    this.mark(problems);
  }

  /** Replace a part of the text, so that it can be undone. @param {Edit} edit */
  edit({ from, to, text }) {
    this.view.dispatch({ changes: { from, to, insert: text }, selection: { anchor: from + text.length } });
  }

  /** Show problems beside their lines. @param {readonly Problem[]} problems */
  mark(problems) {
    this.view.dispatch({ effects: setMarks.of({ problems }) });
  }

  /** The line of the cursor, from 1. */
  get line() {
    return this.place.line;
  }

  get place() {
    const { head } = this.view.state.selection.main;
    const line = this.view.state.doc.lineAt(head);
    return { line: line.number, column: head - line.from + 1 };
  }

  /**
   * Scroll to a line, and put the cursor there.
   * @param {number} line
   * @param {number} [column]
   * @param {boolean} [focus]
   */
  goTo(line, column = 1, focus = true) {
    const { doc } = this.view.state;
    const { from, to } = doc.line(Math.max(1, Math.min(line, doc.lines)));
    const anchor = Math.min(to, from + column - 1);
    const effects = [EditorView.scrollIntoView(anchor, { y: "center" }), setMarks.of({ line })];
    this.view.dispatch({ selection: { anchor }, effects });
    if (focus) this.view.focus();
  }
}

/** @param {any} context @param {Options["complete"]} complete */
function completionOf({ state, pos, explicit }, complete) {
  const { from, to, word, options } = complete(state.doc.toString(), pos);
  if (state.readOnly || !options.length || (!explicit && !word)) return null;
  const shown = options.slice(0, MOST_OPTIONS).map(({ label, insert, about, detail }) => ({
    label, detail, apply: insert, info: about || undefined,
  }));
  return { from, to, filter: false, options: shown };
}

/** CodeMirror's own words in the language of the interface. */
const phrases = () =>
  Object.fromEntries(
    [["Find", t("Find")], ["Replace", t("Replace with")], ["next", t("next")], ["previous", t("previous")],
      ["all", t("all")], ["match case", t("match case")], ["regexp", t("regexp")], ["by word", t("by word")],
      ["replace", t("replace")], ["replace all", t("replace all")], ["close", t("Close")],
      ["Completions", t("Completions")]],
  );
