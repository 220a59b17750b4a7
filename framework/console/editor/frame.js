/** What stands around the text: the file and its actions, notes, rows of problems. */

import { h } from "../core/dom.js";
import { digest } from "../core/format.js";
import { t, tn, tParts } from "../core/i18n.js";
import { icon } from "../core/icons.js";
import { identity, may } from "../core/live.js";
import { link } from "../core/route.js";

/** @typedef {import("../types.d.ts").Problem} Problem */

/**
 * Return why a file is shown, but not edited; empty if it is edited.
 * @param {import("../types.d.ts").FileContent | null} file
 */
export function obstacleOf(file) {
  if (!may("admin")) return t("Your key lacks the role admin.");
  if (!identity.value?.server.allow_edit) return t("Editing is off: set server.allow_edit: true in agentsd.yaml.");
  return file?.reason ?? "";
}

/** @param {import("../types.d.ts").AppliedEdit} applied */
export function outcomeText({ outcome, generation }) {
  if (outcome === "unchanged") return t("no change");
  if (outcome === "pending") return t("written, not live yet");
  if (outcome === "rejected") return t("written, but rejected by the test cases");
  return t("Generation {n} is live", { n: generation });
}

/**
 * Return the row above the text.
 * @param {{path: string, base: string, isEdited: boolean, obstacle: string, isBusy: boolean, canApply: boolean}} state
 * @param {{apply: () => void, discard: () => void, more: () => void}} actions
 */
export function headOf({ path, base, isEdited, obstacle, isBusy, canApply }, { apply, discard, more }) {
  const label = isBusy ? [h("i.spin"), t("Applying")] : [t("Apply"), h("kbd", "Ctrl S")];
  return [
    h("b.strong.cut", path),
    h("span.tag.mono.not-s", { title: t("The version that this edit began from") }, digest(base)),
    isEdited && h("span.small.dim.nw.not-s", t("edited here")),
    h("span.grow"),
    obstacle ? h("span.small.dim.cut", { title: obstacle }, t("read-only"), ": ", obstacle) : [
      isEdited && h("button.btn.sm.ghost", { onclick: discard }, t("Discard")),
      h("button.btn.sm.primary", { disabled: !canApply, onclick: apply }, label),
    ],
    h("button.ib.more", { "aria-label": t("What it would do"), onclick: more }, icon("info")),
  ];
}

/**
 * Return the row below the text.
 * @param {{errors: number, said: string, line: number, column: number, kind: string}} state
 */
export function footOf({ errors, said, line, column, kind }) {
  return [
    errors ? h("span.k-danger.ink.row", icon("alert"), tn(errors, "1 problem", "{n} problems")) : null,
    h("span.grow.cut", said),
    h("span.nw.not-s", t("line {line}, column {column}", { line, column })),
    h("span.nw", { template: "Jinja", plugin: "Python" }[kind] ?? "YAML"),
  ];
}

/** Note that the file has changed on the disk. @param {() => void} compare */
export function changedNote(compare) {
  const show = h("button.lk", { onclick: compare }, t("Show them side by side"));
  const text = h("div", h("b", t("This file has changed on the disk.")), " ", t("Both versions stay."), " ", show);
  return h("div.sec-b", h("div.note.k-warn", icon("edit"), text));
}

/**
 * Return a problem with its place, and the fix that can be taken.
 * @param {Problem} problem
 * @param {string} path of the edited file
 * @param {{goTo: (line: number, column?: number) => void, takeFix: ((problem: Problem) => void) | null}} actions
 */
export function problemRow(problem, path, { goTo, takeFix }) {
  const { severity, line, column, message, hint, fix } = problem;
  const isHere = problem.path === path;
  const where = [isHere ? null : problem.path, line, column].filter(Boolean).join(":") || problem.path;
  const href = link("config", "files", ...problem.path.split("/"), { line });
  /** @param {() => void} onclick @param {any[]} text */
  const button = (onclick, ...text) => h("button.lk", { onclick }, text);
  const place = isHere && line ? button(() => goTo(line, column), where) : h("a.lk", { href }, where);
  const offer = fix && isHere && takeFix
    ? button(() => takeFix(problem), tParts("Write {new}", { new: h("code", fix.instead) })) : null;
  return h("li", { class: severity === "error" ? "k-danger" : "k-warn" }, h("span.ink", icon("alert")),
    h("div", place, " ", message, hint && !fix ? h("p.dim", hint) : null,
      offer && h("p", offer, " ", h("kbd", "Alt Enter"))));
}
