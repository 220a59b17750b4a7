/** One generation: what it changed, its files, its problems, and the way back to it. */

import { apiPath, get, post } from "../core/api.js";
import { h } from "../core/dom.js";
import { fullTime, time } from "../core/format.js";
import { t, tn } from "../core/i18n.js";
import { icon } from "../core/icons.js";
import { live, may } from "../core/live.js";
import { go, link } from "../core/route.js";
import { changeList, effectTags } from "../widgets/changes.js";
import { copyButton } from "../widgets/copy.js";
import { diffView } from "../widgets/diff.js";
import { ask } from "../widgets/dialog.js";
import { problemCards } from "../widgets/problem-card.js";
import { toast } from "../widgets/toast.js";

/** @typedef {import("../types.d.ts").GenerationDetail} GenerationDetail */
/** @typedef {import("../types.d.ts").Change} Change */

/**
 * Return the details of a generation.
 * @param {number} number
 * @param {readonly import("../types.d.ts").PastConfig[]} entries
 */
export async function showGeneration(number, entries) {
  /** @type {GenerationDetail} */
  const found = await get(apiPath`/config/history/${number}`);
  const problems = found.live ? (live.value?.problems ?? found.problems) : found.problems;
  return h("div.mid.wide",
    head(found, entries),
    figures(found),
    found.live ? stateNotes() : null,
    problemCards(problems),
    changesCard(found.changes, found.live),
    fileCards(found.files, found.previous === undefined && number > 1));
}

/** @param {GenerationDetail} found @param {readonly import("../types.d.ts").PastConfig[]} entries */
function head(found, entries) {
  const { generation, previous, digest } = found;
  const text = previous ? t("compared with {n}", { n: previous }) : t("nothing to compare with");
  const back = entries.length > 1 && found.live ? entries[1].generation : found.live ? null : generation;
  const label = t("Roll back to {n}", { n: back ?? "" });
  const button = h("button.btn.sm", { onclick: () => rollBack(back ?? 0) }, icon("undo"), label);
  return h("div.row.wrap.top",
    h("a.ib.only", { href: link("config"), "aria-label": t("Back to the list") }, icon("left")),
    h("div.grow",
      h("div.row", h("h2.h18.nw", t("Generation {n}", { n: generation })), found.live && h("span.tag.k-ok", t("live"))),
      h("p.small.dim.row.wrap", h("span.hash", digest), h("span.not-s", copyButton(digest)),
        triggerText(found.trigger), " · ", text)),
    back && may("admin") ? button : null);
}

/** @param {GenerationDetail["trigger"]} trigger */
function triggerText(trigger) {
  const texts = { startup: t("start of the server"), watch: t("edit of files"), api: t("requested by a program"),
    rollback: t("rollback"), source: t("tool servers changed") };
  return texts[trigger] ?? trigger;
}

/** @param {GenerationDetail} found */
function figures({ at, agents, changes, files }) {
  /** @param {string} name @param {...any} value */
  const figure = (name, ...value) => h("div", h("dt", name), h("dd", value));
  return h("dl.figs",
    figure(t("Went live"), h("time", { title: fullTime(at), datetime: at }, time(at))),
    figure(t("Agents"), agents.length),
    figure(t("Changes"), changes.length),
    figure(t("Files changed"), files.length),
    live.value?.environment ? figure(t("Environment"), live.value.environment) : null);
}

/** Notes on the live generation: it is held, or agents keep an earlier version. */
function stateNotes() {
  const { held, stale } = live.value ?? { held: false, stale: [] };
  const names = stale.map((name, i) => [i ? ", " : "", h("a.lk", { href: link("agents", name) }, name)]);
  const kept = tn(stale.length, "1 agent keeps its last good version", "{n} agents keep their last good version");
  return [
    held && h("div.note.k-info", icon("pin"), h("div", h("b", t("Held.")), " ",
      t("After the rollback the files on disk are ignored until they change again."))),
    stale.length > 0 && h("div.note.k-warn", icon("alert"), h("div", h("b", kept), ": ", names)),
  ];
}

/** @param {readonly Change[]} changes @param {boolean} isLive */
export function changesCard(changes, isLive) {
  if (!changes.length) return null;
  const note = t("Runs under way keep their generation; only what is stricter reaches them.");
  return h("section.card", h("header", h("h2", t("Changes")), effectTags(changes)),
    isLive ? h("p.small.dim.in0", note) : null, changeList(changes));
}

/** @param {GenerationDetail["files"]} files @param {boolean} unknown */
function fileCards(files, unknown) {
  if (unknown) return h("p.dim", t("The generation before it is no longer kept, so its files are not compared."));
  return files.map((file, i) => fileCard(file.path, file.before, file.after, i < 8));
}

/**
 * Return the difference of a file, folded unless it is `open`.
 * @param {string} path
 * @param {string | undefined} before
 * @param {string | undefined} after
 * @param {boolean} open
 */
export function fileCard(path, before, after, open) {
  const word = before === undefined ? t("added") : after === undefined ? t("removed") : "";
  const content = before === after ? h("p.dim", t("Only masked or binary parts differ.")) : null;
  const tag = word ? h("span.tag", word) : null;
  const details = h("details", { open }, h("summary", icon("file"), h("b.cut", path), tag));
  const draw = () => details.childElementCount < 2 && details.append(
    h("div.in", content ?? diffView(before ?? "", after ?? "")));
  if (open) draw();
  else details.addEventListener("toggle", draw);
  return h("section.card.filediff", details, h("a.btn.sm.ghost", { href: fileLink(path) }, icon("edit"), t("Open")));
}

/** @param {string} path */
const fileLink = (path) => link("config", "files", ...path.split("/"));

/** @param {number} number */
async function rollBack(number) {
  /** @type {GenerationDetail} */
  const { rollback } = await get(apiPath`/config/history/${number}`);
  const wider = rollback.some(({ effect }) => effect === "widens");
  const body = h("div.stack",
    h("p", t("It goes live under a new number, and stays until the files change.")),
    wider ? h("p.note.k-warn", icon("widen"), h("span", t("It lets agents do more than now:"))) : null,
    rollback.length ? changeList(rollback) : h("p.dim", t("It changes texts or code only.")));
  if (!(await ask({ title: t("Roll back to {n}", { n: number }), body, action: t("Roll back to {n}", { n: number }) })))
    return;
  try {
    live.value = await post("/config/rollback", { generation: number });
    go(link("config"));
  } catch (error) {
    toast({ title: t("The rollback failed"), body: /** @type {Error} */ (error).message, tone: "danger", stay: true });
  }
}
