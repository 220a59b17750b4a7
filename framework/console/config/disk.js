/** The files on the disk where they differ from what is live: what a reload would change, and why it does not. */

import { get } from "../core/api.js";
import { h } from "../core/dom.js";
import { time } from "../core/format.js";
import { t } from "../core/i18n.js";
import { icon } from "../core/icons.js";
import { live } from "../core/live.js";
import { link } from "../core/route.js";
import { problemCards } from "../widgets/problem-card.js";
import { changesCard, fileCard } from "./generation.js";

const MOST_FILES = 20;

/** @param {import("./history.js").Disk} disk */
export async function showDisk({ files, check, at }) {
  const differ = files.filter(({ state }) => state !== "live");
  /** @type {import("../types.d.ts").FileContent[]} */
  const texts = await Promise.all(differ.slice(0, MOST_FILES).map(({ path }) => get(fileAddress(path))));
  const problems = check?.problems ?? live.value?.problems ?? [];
  const { kind, icon: name, text } = outcome(check, problems.some(({ severity }) => severity === "error"));
  const checked = at ? t("checked {time}", { time: time(at) }) : "";
  return h("div.mid.wide",
    h("div.row.top",
      h("a.ib.only", { href: link("config"), "aria-label": t("Back to the list") }, icon("left")),
      h("div.grow", h("h2.h18", t("Files on disk")), h("p.small.dim", checked))),
    h("div", { class: `note ${kind}`, role: "status" }, icon(name), h("div", text)),
    problemCards(problems),
    changesCard(check?.changes ?? [], false),
    texts.map((file) => fileCard(file.path, file.live, file.text, texts.length <= 8)));
}

/** @param {string} path */
export const fileAddress = (path) => `/config/files/${path.split("/").map(encodeURIComponent).join("/")}`;

/** @param {import("../types.d.ts").CheckedConfig | null} check @param {boolean} invalid */
function outcome(check, invalid) {
  const held = t("Held after a rollback: these files go live once they change.");
  if (live.value?.held) return { kind: "k-info", icon: "pin", text: held };
  if (!check) return { kind: "k-info", icon: "info", text: t("These files are not live, or not as they are.") };
  const n = { n: live.value?.generation ?? 0 };
  return {
    unchanged: { kind: "k-ok", icon: "check", text: t("The files are those of generation {n}.", n) },
    applied: { kind: "k-ok", icon: "check", text: t("All files are valid.") },
    partial: { kind: "k-danger", icon: "alert",
      text: t("Not all files are valid: their agents keep the version of generation {n}.", n) },
    rejected: { kind: "k-danger", icon: "alert", text: t("These files cannot go live; generation {n} stays", n) },
  }[check.outcome === "unchanged" && invalid ? "partial" : check.outcome];
}
