/** The project's files by folder. */

import { fill, h } from "../core/dom.js";
import { t } from "../core/i18n.js";
import { icon } from "../core/icons.js";
import { link } from "../core/route.js";
import { mayEdit } from "../widgets/fix.js";
import { newFile } from "./create.js";
import { drafts } from "./state.js";

/** @typedef {import("../types.d.ts").ProjectFile} ProjectFile */

/**
 * @param {HTMLElement} node
 * @param {readonly ProjectFile[]} files
 * @param {string} selected
 */
export function drawTree(node, files, selected) {
  const edited = drafts();
  /** @type {Map<string, ProjectFile[]>} */
  const folders = new Map();
  for (const file of files) {
    const folder = file.path.replace(/\/?[^/]*$/, "");
    folders.set(folder, [...(folders.get(folder) ?? []), file]);
  }
  const create = { onclick: () => newFile(files), "aria-label": t("New file"), title: t("New file") };
  fill(node,
    h("div.row.back", h("a.grow", { href: link("config") }, icon("left"), t("Generations")),
      mayEdit() ? h("button.ib", create, icon("plus")) : null),
    [...folders].sort(([a], [b]) => Number(a === "") - Number(b === "")).map(([folder, inside]) => [
      folder && h("h2", icon("folder"), h("span.cut", folder)),
      h("ul", { class: folder ? "in1" : "" },
        inside.map((file) => h("li", row(file, edited.has(file.path), file.path === selected)))),
    ]));
}

/** @param {ProjectFile} file @param {boolean} edited @param {boolean} selected */
function row({ path, state, editable }, edited, selected) {
  const states = { live: "", changed: t("not live"), invalid: t("invalid"), deleted: t("deleted") };
  const mark = edited ? h("span.dot.k-accent", { role: "img", "aria-label": t("edited here") })
    : states[state] ? h(`span.small${state === "invalid" ? ".k-danger.ink" : ".dim"}`, states[state])
    : editable ? null : h("span.small.dim", t("read-only"));
  const href = link("config", "files", ...path.split("/"));
  const props = { href, title: path, "aria-current": selected ? "page" : null };
  return h("a", props, icon("file"), h("span.grow.cut", path.replace(/^.*\//, "")), mark);
}
