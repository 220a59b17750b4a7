/** The generations that changed an agent: changed keys, and the files before and after. */

import { apiPath, get } from "../core/api.js";
import { failureNote } from "../core/component.js";
import { fill, h } from "../core/dom.js";
import { fullTime, time } from "../core/format.js";
import { t } from "../core/i18n.js";
import { icon } from "../core/icons.js";
import { link } from "../core/route.js";
import { changeList } from "../widgets/changes.js";
import { diffView } from "../widgets/diff.js";

/** @param {string} name */
export function history(name) {
  const node = h("div.stack");
  get(apiPath`/agents/${name}/history`).then(
    ({ versions }) => fill(node, versions.length ? versions.map(version) : h("p.dim", t("No change is recorded."))),
    (error) => fill(node, failureNote(error)));
  return node;
}

/** @param {import("../types.d.ts").AgentVersion} version @param {number} i */
function version({ generation, at, live, stale, changes, files }, i) {
  const isFirst = changes.some(({ key }) => !key);
  const note = isFirst ? t("The version at the start of the server.")
    : stale ? t("Its file became invalid; the last valid version stayed live.")
    : files.length ? "" : t("Its files stayed the same: its tools or its sub-agents changed.");
  return h("section.card",
    h("header", h("h2", h("a.lk", { href: link("config", generation) }, `g${generation}`)),
      h("time.dim.grow", { title: fullTime(at) }, time(at)),
      stale ? h("span.tag.k-warn", t("stale")) : null, live ? h("span.tag.k-ok", t("live")) : null),
    h("div.in.stack", note ? h("p.sec", note) : null, isFirst || !changes.length ? null : changeList(changes),
      files.map(({ path, before = "", after = "", too_large }) => h("details", { open: i === 0 && !isFirst },
        h("summary.row", icon("right", { size: 14 }), h("code", path)),
        too_large ? h("p.dim", t("It is too large to be compared.")) : diffView(before, after)))));
}
