/** What differs between the live processes of a fleet: versions of agentsd, and files of agents. */

import { h } from "../core/dom.js";
import { digest } from "../core/format.js";
import { t, tn, tParts } from "../core/i18n.js";
import { icon } from "../core/icons.js";
import { link } from "../core/route.js";

/** @typedef {import("../types.d.ts").Fleet} Fleet */

/** Return the digest that most processes have, by agent. Without a majority: "". @param {Fleet} fleet */
export function commonDigests({ digests }) {
  const found = Object.entries(digests).map(([agent, counts]) => {
    const [first, second] = Object.entries(counts).sort(([, a], [, b]) => b - a);
    return [agent, second?.[1] === first[1] ? "" : first[0]];
  });
  return Object.fromEntries(found);
}

/** @param {Record<string, string>} common @param {string} agent @param {string} digest of a process */
export const isCommon = (common, agent, digest) => !(agent in common) || common[agent] === digest;

/** @param {Fleet} fleet */
export function versionNote({ processes }) {
  /** @type {Record<string, number>} */
  const counts = {};
  for (const { alive, version } of processes) if (alive) counts[version] = (counts[version] ?? 0) + 1;
  const versions = Object.entries(counts).sort();
  if (versions.length < 2) return null;
  const list = versions.map(([version, n]) => t("{version} on {n}", { version: version || "–", n })).join(", ");
  const text = t("The processes have different versions of agentsd: {list}.", { list });
  return h("div.note.k-info", icon("info"), h("div", text));
}

/** The agents whose files differ, or that some processes lack. @param {Fleet} fleet */
export function agentDifferences({ processes, digests }) {
  const live = processes.filter(({ alive }) => alive);
  const rows = Object.entries(digests).flatMap(([agent, counts]) => {
    const having = Object.values(counts).reduce((sum, n) => sum + n, 0);
    const lacking = live.filter(({ agents }) => !(agent in agents));
    if (Object.keys(counts).length < 2 && !lacking.length) return [];
    const versions = Object.entries(counts).sort(([, a], [, b]) => b - a);
    /** @type {HTMLElement[]} */
    const parts = versions.map(([value, n]) => {
      const names = live.filter(({ agents }) => agents[agent] === value).map(({ name }) => name);
      return h("li", h("code", { title: value }, digest(value)), " ", share(n, having + lacking.length, names));
    });
    const names = lacking.map(({ name }) => name);
    if (names.length) parts.push(h("li.ink.k-warn", t("missing"), " ", share(names.length, live.length, names)));
    return [[h("dt", h("a.lk", { href: link("agents", agent) }, agent)), h("dd", h("ul", parts))]];
  });
  if (!rows.length) return null;
  const title = tn(rows.length, "1 agent differs between processes.", "{n} agents differ between processes.");
  const why = t("A run keeps the files that it began on, on whichever process it continues.");
  const text = h("div", h("b", title), " ", why);
  return h("div.note.k-warn", icon("alert"), h("div.stack", text, h("dl.facts", rows)));
}

/** @param {number} n @param {number} all @param {string[]} names */
function share(n, all, names) {
  const some = names.slice(0, 3).join(", ") + (names.length > 3 ? " …" : "");
  const who = h("span.dim", { title: names.join(", ") }, some);
  return tParts("on {n} of {all}: {who}", { n, all, who });
}
