/** Creates an agent file or a template from the least text that is valid. */

import { h } from "../core/dom.js";
import { t } from "../core/i18n.js";
import { go, link } from "../core/route.js";
import { openDialog } from "../widgets/dialog.js";
import { createFile } from "./state.js";

/** @typedef {import("../types.d.ts").ProjectFile} ProjectFile */

const NAME = "[a-z][a-z0-9_\\-]*";
/** @type {Record<string, {folder: string, suffix: string, text: () => string}>} */
const KINDS = {
  agent: { folder: "agents.d", suffix: ".yaml", text: () => `\
description: Answers questions.
instructions: Answer the question.
tools: []
` },
  template: { folder: "prompts", suffix: ".j2", text: () => "Answer the question.\n" },
};

/** Ask for the kind and the name of a new file, write it, and open it. @param {readonly ProjectFile[]} files */
export function newFile(files) {
  const name = h("input", { class: "input mono", required: true, pattern: NAME, autocomplete: "off" });
  const problem = h("p.ink.k-danger", { role: "alert" });
  const kinds = h("select", { class: "input" }, [option("agent", t("Agent")), option("template", t("Template"))]);
  const create = h("button", { class: "btn primary", type: "submit" }, t("Create"));
  const onsubmit = async (/** @type {Event} */ event) => {
    event.preventDefault();
    const { folder, suffix, text } = KINDS[kinds.value];
    const place = files.find(({ kind }) => kind === kinds.value)?.path.replace(/\/?[^/]*$/, "") ?? folder;
    const path = [place, name.value + suffix].filter(Boolean).join("/");
    create.disabled = true;
    try {
      await createFile(path, text());
      close();
      go(link("config", "files", ...path.split("/")));
    } catch (error) {
      const { status, message } = /** @type {import("../core/api.js").ApiError} */ (error);
      problem.textContent = status === 412 ? t("{path} exists already.", { path }) : message;
    }
    create.disabled = false;
  };
  const fields = [
    h("label.field", h("span.label", t("Kind")), kinds),
    h("label.field", h("span.label", t("Name")), name, h("small.dim", t("Lower-case letters, digits, - and _."))),
  ];
  const title = t("New file");
  const footer = h("footer", h("button.btn", { onclick: () => close() }, t("Cancel")), create);
  const form = h("form", { onsubmit }, h("div.in", h("h2.h15", title), fields, problem), footer);
  const close = openDialog(form, { label: title, kind: "narrow" });
}

/** @param {string} value @param {string} label */
const option = (value, label) => h("option", { value }, label);
