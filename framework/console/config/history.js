/** The generations, what is on the disk, and the details of the selected one. */

import { get, post } from "../core/api.js";
import { Component, define, failureNote } from "../core/component.js";
import { fill, h, keyed } from "../core/dom.js";
import { digest, fullTime, time } from "../core/format.js";
import { t, tn } from "../core/i18n.js";
import { icon } from "../core/icons.js";
import { onKeys } from "../core/keys.js";
import { live, may } from "../core/live.js";
import { go, link, route } from "../core/route.js";
import { changeText, effectTags } from "../widgets/changes.js";
import { showDisk } from "./disk.js";
import { showGeneration } from "./generation.js";

/** @typedef {import("../types.d.ts").PastConfig} PastConfig */
/** @typedef {import("../types.d.ts").ProjectFile} ProjectFile */
/** @typedef {{files: ProjectFile[], check: import("../types.d.ts").CheckedConfig | null, at: number | null}} Disk */

const RELOOK = 20_000;

class ConfigHistory extends Component {
  /** @type {PastConfig[]} */
  #entries = [];
  /** @type {Disk} */
  #disk = { files: [], check: null, at: null };
  #list = h("div.gens");
  #detail = h("div.doc", { tabindex: -1 });
  #asked = 0;

  start() {
    this.classList.add("split", "cfg");
    const props = { onclick: () => this.#check() };
    const check = h("button.btn.sm", props, icon("check"), t("Check files"));
    const files = h("a.btn.sm.ghost", { href: link("config", "files") }, icon("file"), t("Files"));
    const head = h("header", h("h2.grow", t("Generations")), files, may("admin") ? check : null);
    const kept = h("p.small.dim.kept", t("The last 20 generations are kept."));
    const list = h("aside.side", { "aria-label": t("Generations") }, head, h("div.scroll", this.#list, kept));
    fill(this, list, this.#detail);
    const keys = { j: () => this.#move(1), k: () => this.#move(-1) };
    onKeys(null, keys, this.stopped);
    this.watch(live, () => void this.#refresh());
    this.watch(route, () => void this.#select());
    this.every(RELOOK, () => void this.#refresh());
  }

  async #refresh() {
    const asks = [get("/config/history"), get("/config/files")];
    /** @param {any[]} found */
    const done = ([{ generations }, { files }]) => {
      this.#entries = generations;
      this.#disk = { ...this.#disk, files };
      this.#draw();
      void this.#select();
    };
    await this.load(Promise.all(asks), done, undefined, this.#list);
    if (may("admin") && this.#differs) await this.#look();
  }

  get #differs() {
    return this.#disk.files.some(({ state }) => state !== "live") || Boolean(live.value?.held);
  }

  async #look() {
    await this.load(post("/config/check"), (check) => {
      this.#disk = { ...this.#disk, check };
      this.#draw();
      if (route.value.parts[0] === "disk") void this.#select();
    });
  }

  async #check() {
    this.#disk = { ...this.#disk, at: Date.now() };
    await this.#look();
    go(link("config", "disk"));
    void this.#select();
  }

  #draw() {
    const disk = this.#differs ? [{ generation: 0 }] : [];
    const rows = [...disk, ...this.#entries];
    keyed(this.#list, rows, ({ generation }) => generation, () => h("a.gen"), (node, row) => {
      const held = live.value?.held ?? false;
      if (row.generation) drawGeneration(node, /** @type {PastConfig} */ (row), this.#entries, held);
      else drawDisk(node, this.#disk);
    });
    this.#mark();
  }

  #mark() {
    const href = this.#hash();
    for (const node of this.#list.children) {
      if (node.getAttribute("href") === href) node.setAttribute("aria-current", "true");
      else node.removeAttribute("aria-current");
    }
  }

  /** The address of the selected row: without one in the place, the live generation. */
  #hash() {
    const { page, parts } = route.value;
    return link("config", page === "config" && parts[0] ? parts[0] : (this.#entries[0]?.generation ?? ""));
  }

  /** @param {number} step */
  #move(step) {
    const rows = /** @type {HTMLElement[]} */ ([...this.#list.children]);
    const next = rows[rows.findIndex((row) => row.hasAttribute("aria-current")) + step];
    if (next) go(/** @type {string} */ (next.getAttribute("href")));
  }

  async #select() {
    const { page, parts } = route.value;
    if (page !== "config" || parts[0] === "files" || !this.#entries.length) return;
    this.#mark();
    this.classList.toggle("detail", Boolean(parts[0]));
    const asked = (this.#asked += 1);
    const number = Number(parts[0] || this.#entries[0].generation);
    const found = parts[0] === "disk" ? showDisk(this.#disk) : showGeneration(number, this.#entries);
    await this.load(found, (node) => asked === this.#asked && fill(this.#detail, node), (error) => {
      if (asked === this.#asked) fill(this.#detail, h("div.mid", failureNote(error, () => void this.#select())));
    }, this.#detail);
  }
}

/**
 * @param {HTMLElement} node
 * @param {PastConfig} entry
 * @param {PastConfig[]} entries
 * @param {boolean} held
 */
function drawGeneration(node, entry, entries, held) {
  const { generation, at, live: isLive, changes, unusable } = entry;
  node.setAttribute("href", link("config", generation));
  node.classList.toggle("is-live", isLive);
  const broken = tn(unusable.length, "1 invalid file", "{n} invalid files");
  fill(node,
    h("span.pt"),
    h("span.row", h("b", generation), h("span.hash", digest(entry.digest)),
      isLive && h("span.tag.k-ok", t("live")), isLive && held && h("span.tag.k-info", icon("pin"), t("held"))),
    h("time", { title: fullTime(at), datetime: at }, time(at)),
    h("span.what.cut", summary(entry, entries)),
    h("span.marks", effectTags(changes), unusable.length ? h("span.tag.k-danger", icon("alert"), broken) : null));
}

/** @param {HTMLElement} node @param {Disk} disk */
function drawDisk(node, { files, check }) {
  const differ = files.filter(({ state }) => state !== "live").length;
  const errors = (check?.problems ?? live.value?.problems ?? []).filter(({ severity }) => severity === "error").length;
  node.setAttribute("href", link("config", "disk"));
  node.classList.toggle("bad", errors > 0);
  fill(node,
    h("span.pt"),
    h("span.row", h("b.say", t("On disk"))),
    h("span"),
    h("span.what.cut", tn(differ, "1 file differs from what is live", "{n} files differ from what is live")),
    h("span.marks", errors ? h("span.tag.k-danger", icon("alert"), tn(errors, "1 problem", "{n} problems")) : null,
      effectTags(check?.changes ?? [])));
}

/** @param {PastConfig} entry @param {PastConfig[]} entries */
export function summary({ generation, digest, trigger, changes }, entries) {
  const same = entries.find((other) => other.digest === digest && other.generation < generation);
  if (trigger === "rollback") return same ? t("back to what {n} was", { n: same.generation }) : t("rollback");
  if (trigger === "startup") return t("start of the server");
  if (changes.length === 1) return changeText(changes[0]);
  if (!changes.length) return trigger === "source" ? t("tool servers changed") : t("texts or code");
  const agents = [...new Set(changes.map(({ agent }) => agent))].join(", ");
  return `${agents}: ${tn(changes.length, "1 change", "{n} changes")}`;
}

export const tag = "config-history";
define(tag, ConfigHistory);
