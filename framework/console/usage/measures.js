/** What is measured of runs, with its text, and the names of their groups. */

import { cost, digest, duration, percent, tokens } from "../core/format.js";
import { t, tn } from "../core/i18n.js";

/** @typedef {import("../types.d.ts").UsageSummary} Usage */
/** @typedef {import("../types.d.ts").UsageFigures} Figures */
/** @typedef {import("../types.d.ts").GroupFigures} Group */
/** @typedef {(value: number | null) => string} Text */
/** @typedef {(figures: Figures) => number | null} Of */
/** @typedef {{id: string, label: () => string, of: Of, text: Text, bad?: string}} Measure */

/** @param {number | null} n */
export const count = (n) => (n ?? 0).toLocaleString("en-US");

/** bad: colour of a rise. @type {Measure[]} */
export const MEASURES = [
  { id: "runs", label: () => t("Runs"), of: (one) => one.runs, text: count },
  { id: "tokens", label: () => t("Tokens"), of: (one) => one.tokens.total, text: tokens },
  { id: "cost", label: () => t("Cost"), of: (one) => one.cost_usd, text: cost },
  { id: "each", label: () => t("A run"), of: costOfRun, text: cost },
  { id: "p50", label: () => "p50", of: (one) => one.latency.p50_ms, text: duration, bad: "warn" },
  { id: "p95", label: () => "p95", of: (one) => one.latency.p95_ms, text: duration, bad: "warn" },
  { id: "failed", label: () => t("Failed"), of: failed, text: (n) => (n === null ? "–" : percent(n)), bad: "danger" },
];

/** @param {Figures} figures */
function costOfRun({ cost_usd, runs, unknown_cost }) {
  return cost_usd === null || runs === unknown_cost ? null : cost_usd / (runs - unknown_cost);
}

/** @param {Figures} figures share of ended runs */
function failed({ statuses: { completed = 0, stopped = 0, failed = 0, cancelled = 0 } }) {
  return completed || stopped || failed || cancelled ? failed / (completed + stopped + failed + cancelled) : null;
}

/** @param {Measure} measure @param {Figures} figures its text; some runs may have no price */
export function measured({ id, of, text }, figures) {
  const least = id === "cost" && figures.unknown_cost && figures.cost_usd !== null;
  return (least ? "≥\u2009" : "") + text(of(figures));
}

/** @param {Figures} figures */
export const unpriced = ({ unknown_cost: n }) => (n ? tn(n, "1 run without a price", "{n} runs without a price") : "");

/** @type {Record<string, () => string>} */
export const TITLES = { agent: () => t("Agent"), model: () => t("Model"), generation: () => t("Generation") };

/** @param {Usage["by"]} by @param {Group} group */
export function groupName(by, { key, generation }) {
  if (key === null) return t("unknown");
  return by === "generation" ? `g${generation} ${digest(key)}` : key;
}
