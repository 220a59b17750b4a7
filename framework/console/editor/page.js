/** The editor of agent files and templates: tree, text, and what an edit would do. */

import { get } from "../core/api.js";
import { Component, define } from "../core/component.js";
import { fill, h } from "../core/dom.js";
import { now } from "../core/clock.js";
import { t } from "../core/i18n.js";
import { icon } from "../core/icons.js";
import { configEvents } from "../core/live.js";
import { go, link, route } from "../core/route.js";
import { changeList } from "../widgets/changes.js";
import { ask } from "../widgets/dialog.js";
import { completeFile } from "./complete.js";
import { conflictView } from "./conflict.js";
import { fixEdit } from "./edits.js";
import { changedNote, footOf, headOf, obstacleOf, outcomeText, problemRow } from "./frame.js";
import { drawForm, drawOutcome } from "./side.js";
import { applyText, checkText, concerning, draftOf, keepDraft, readFile } from "./state.js";
import { loadField } from "./text.js";
import { drawTree } from "./tree.js";

/** @typedef {import("../types.d.ts").FileContent} FileContent */
/** @typedef {import("../types.d.ts").Problem} Problem */

const CHECK_AFTER = 300;
const LOOK_EVERY = 5_000;

class EditorPage extends Component {
  /** @type {import("../types.d.ts").ProjectFile[]} */
  files = [];
  /** @type {FileContent | null} */
  file = null;
  /** The digest that the edit began from. */
  base = "";
  /** @type {Record<string, any>} */
  schema = {};
  /** @type {import("../types.d.ts").CheckedConfig | null} */
  check = null;
  /** @type {Problem[]} */
  problems = [];
  /** Whether the file has changed on the disk since the edit began. */
  changed = false;
  busy = false;
  said = "";
  checking = new AbortController();
  timer = 0;
  /** @type {import("./text.js").Field | null} */
  field = null;
  fieldClass = loadField();
  tree = h("nav.tree-f", { "aria-label": t("Files") });
  head = h("header");
  body = h("div.edbody");
  foot = h("div.foot", { role: "status" });
  outcome = h("div");
  form = h("div");
  notes = h("div");
  side = h("aside.insp.edside", { "aria-label": t("What it would do") },
    h("div.scroll", this.notes, this.outcome, this.form));

  start() {
    this.classList.add("ed");
    fill(this, this.tree,
      h("section.edpane", { "aria-label": t("Editor") }, this.head, this.body, this.foot), this.side);
    this.on(this, "keydown", (event) => this.#key(event));
    for (const type of ["input", "keyup", "click"]) this.on(this, type, () => this.#drawFoot());
    this.load(get("/config/schema"), (schema) => ((this.schema = schema), this.#drawForm()), () => {});
    this.watch(route, ({ page, parts }) => page === "config" && parts[0] === "files" && void this.#open());
    this.watch(configEvents, () => void this.#look());
    this.every(LOOK_EVERY, () => void this.#look());
  }

  get path() {
    return route.value.parts.slice(1).join("/");
  }

  get text() {
    return this.field?.text ?? "";
  }

  /** The text on the disk, with line ends as a text field has them. */
  get onDisk() {
    return (this.file?.text ?? "").replace(/\r\n?/g, "\n");
  }

  get isEdited() {
    return Boolean(this.file) && this.text !== this.onDisk;
  }

  get errors() {
    return this.problems.filter(({ severity }) => severity === "error").length;
  }

  /** Why the file is shown, but not edited; empty if it is edited. */
  get obstacle() {
    return obstacleOf(this.file);
  }

  async #open() {
    const { path } = this;
    if (path && path === this.file?.path) return this.#goToLine();
    await this.load(get("/config/files"), ({ files }) => (this.files = files));
    if (!path) {
      const first = this.files.find(({ kind }) => kind === "agent") ?? this.files[0];
      const isOpen = first && route.value.page === "config";
      return isOpen && go(link("config", "files", ...first.path.split("/")), { replace: true });
    }
    drawTree(this.tree, this.files, path);
    await this.load(readFile(path), (file) => path === this.path && void this.#show(file), (error) => {
      this.file = null;
      for (const node of [this.head, this.foot, this.outcome, this.form, this.notes]) fill(node);
      fill(this.body, h("div.empty", icon("file"), h("h2", t("There is no such file.")), h("p", error.message)));
    });
  }

  /** @param {FileContent} file */
  async #show(file) {
    const Field = await this.fieldClass;
    if (file.path !== this.path) return;
    const draft = draftOf(file.path);
    const base = draft?.base ?? file.digest ?? "";
    Object.assign(this, { file, base, check: null, problems: file.problems, said: "" });
    this.changed = Boolean(draft) && draft?.base !== file.digest;
    const field = (this.field = new Field(file.path, {
      onInput: () => this.#typed(), readOnly: Boolean(this.obstacle),
      complete: (text, offset) => completeFile(file, text, offset, this.schema),
    }));
    const unknown = file.text === undefined && file.state !== "deleted" ? h("p.note.k-info", file.reason) : null;
    fill(this.body, unknown ?? field.element);
    field.reset(draft?.text ?? this.onDisk);
    field.mark(file.problems.filter(({ path }) => path === file.path));
    this.#draw();
    this.#goToLine();
    if (draft && !this.obstacle) void this.#check();
  }

  #goToLine() {
    const line = Number(route.value.query.get("line"));
    if (line) this.field?.goTo(line, 1, !this.obstacle);
    this.#drawFoot();
  }

  #typed() {
    if (!this.file) return;
    if (!this.isEdited) Object.assign(this, { base: this.file.digest ?? "", changed: false });
    keepDraft(this.file.path, this.base, this.isEdited ? this.text : null);
    this.said = "";
    this.check = null;
    clearTimeout(this.timer);
    this.timer = setTimeout(() => void this.#check(), CHECK_AFTER);
    this.#draw();
  }

  /** Ask the server what the text would do. */
  async #check() {
    const { file, text } = this;
    if (!file || this.obstacle) return;
    clearTimeout(this.timer);
    this.checking.abort();
    this.checking = new AbortController();
    const began = now();
    try {
      const check = await checkText(file.path, text, this.checking.signal);
      if (text !== this.text || this.stopped.aborted) return;
      this.check = check;
      this.#setProblems(check.problems);
      this.said = t("checked in {n} ms", { n: Math.round(now() - began) });
    } catch (error) {
      if (this.checking.signal.aborted && /** @type {Error} */ (error).name === "AbortError") return;
      this.said = /** @type {Error} */ (error).message;
    }
    this.#draw();
  }

  /** Show the problems of this file, and those that only this text causes. @param {readonly Problem[]} problems */
  #setProblems(problems) {
    this.problems = concerning(problems, this.file?.path ?? "");
    this.field?.mark(this.problems.filter(({ path }) => path === this.file?.path));
  }

  async #apply() {
    if (!this.file || this.busy || !this.isEdited || this.obstacle) return;
    if (this.changed) return this.#compare();
    if (!this.check) await this.#check();
    if (!this.check || this.errors) return;
    const wider = this.check.changes.filter(({ effect }) => effect === "widens");
    const question = { title: t("Apply {path}", { path: this.file.path }), action: t("Apply"),
      body: h("div.stack", h("p", t("It lets agents do more than now:")), changeList(wider)) };
    if (wider.length && !(await ask(question))) return;
    this.busy = true;
    this.#draw();
    await this.#write(this.file.path, this.text);
    this.busy = false;
    this.#draw();
  }

  /** @param {string} path @param {string} text */
  async #write(path, text) {
    const ends = this.file?.text?.includes("\r\n") ? "\r\n" : "\n";
    try {
      const applied = await applyText(path, text.replaceAll("\n", ends), this.base);
      keepDraft(path, "", null);
      if (path !== this.path) return;
      const file = await readFile(path);
      Object.assign(this, { file, base: file.digest ?? applied.digest, said: outcomeText(applied), check: null });
      this.#setProblems(file.problems);
    } catch (caught) {
      const error = /** @type {import("../core/api.js").ApiError} */ (caught);
      this.said = error.message;
      if (error.problems?.length) this.#setProblems(error.problems);
      if (error.status === 412) await this.#look(true).then(() => this.#compare());
    }
  }

  /** Notice that the file has changed on the disk. An edit that was refused for that is still in progress. */
  async #look(isConflict = false) {
    const { file } = this;
    if (!file || (this.busy && !isConflict)) return;
    const found = await readFile(file.path).catch(() => null);
    if (!found || file !== this.file || (this.busy && !isConflict)) return;
    if (found.digest === file.digest && found.state === file.state && found.live === file.live) return;
    const edited = this.isEdited;
    this.file = found;
    if (found.digest !== this.base && !edited) {
      this.base = found.digest ?? "";
      this.field?.reset(this.onDisk);
      this.said = t("read again: it has changed on the disk");
    }
    this.changed = found.digest !== this.base;
    if (!edited) this.#setProblems(found.problems);
    this.#draw();
  }

  #compare() {
    const { field, file } = this;
    if (!field || !file) return;
    const close = () => fill(this.body, field.element);
    const [disk, own] = [this.onDisk, this.text];
    const begin = (/** @type {string} */ text) => {
      Object.assign(this, { base: file.digest ?? "", changed: false });
      close();
      if (text !== own) field.reset(text);
      this.#typed();
    };
    fill(this.body, conflictView(disk, own, { close, keep: () => begin(own), take: () => begin(disk) }));
  }

  /** @param {KeyboardEvent} event */
  #key(event) {
    const isSave = event.key.toLowerCase() === "s" && (event.ctrlKey || event.metaKey);
    if (isSave) void this.#apply();
    else if (event.key === "Enter" && event.altKey) {
      const fixable = this.problems.filter(({ fix }) => fix);
      this.#takeFix(fixable.find(({ line }) => line === this.field?.line) ?? fixable[0]);
    } else return;
    event.preventDefault();
  }

  /** @param {Problem | undefined} problem */
  #takeFix(problem) {
    const edit = problem && fixEdit(this.text, problem);
    if (edit && !this.obstacle) this.field?.edit(edit);
  }

  #draw() {
    this.#drawHead();
    this.#drawFoot();
    drawTree(this.tree, this.files, this.path);
    const takeFix = this.obstacle ? null : (/** @type {Problem} */ problem) => this.#takeFix(problem);
    drawOutcome(this.outcome, this.obstacle ? null : this.check, this.problems, (problem) =>
      problemRow(problem, this.path, { goTo: (line, column) => this.field?.goTo(line, column), takeFix }));
    this.#drawForm();
    fill(this.notes, this.changed && changedNote(() => this.#compare()));
  }

  #drawForm() {
    const { file, field } = this;
    if (file?.kind !== "agent" || !field || !this.schema.properties) return fill(this.form);
    drawForm(this.form, this.text, this.schema, this.obstacle ? null : (edit) => field.edit(edit));
  }

  #drawHead() {
    const { file, base, isEdited, obstacle, busy: isBusy } = this;
    if (!file) return;
    const canApply = !isBusy && isEdited && !this.errors;
    fill(this.head, headOf({ path: file.path, base, isEdited, obstacle, isBusy, canApply }, {
      apply: () => void this.#apply(),
      discard: () => this.field?.edit({ from: 0, to: this.text.length, text: this.onDisk }),
      more: () => this.side.classList.toggle("open"),
    }));
  }

  #drawFoot() {
    const { field, file } = this;
    if (!field || !file) return;
    fill(this.foot, footOf({ errors: this.errors, said: this.said, kind: file.kind, ...field.place }));
  }
}

export const tag = "editor-page";
define(tag, EditorPage);
