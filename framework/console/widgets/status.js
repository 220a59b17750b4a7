/** The status of a run, as an icon and a word. */

import { h } from "../core/dom.js";
import { t } from "../core/i18n.js";
import { icon } from "../core/icons.js";

/** Icon, colour and word of each status. @type {Record<string, {icon: string, kind: string, word: () => string}>} */
const STATUSES = {
  queued: { icon: "clock", kind: "none", word: () => t("queued") },
  running: { icon: "spin", kind: "accent", word: () => t("running") },
  paused: { icon: "pause", kind: "human", word: () => t("waits for you") },
  completed: { icon: "check", kind: "ok", word: () => t("completed") },
  failed: { icon: "alert", kind: "danger", word: () => t("failed") },
  stopped: { icon: "stop", kind: "warn", word: () => t("stopped") },
  cancelled: { icon: "x", kind: "none", word: () => t("cancelled") },
};
/** @param {string} status */
export const statusWord = (status) => STATUSES[status]?.word() ?? status;

const PLAIN = new Set(["", "final", "confirmation", "cancelled"]);

/**
 * Return the status of a run. A run that failed or was stopped says why, such as `max_steps`.
 * @param {string} status
 * @param {string | null} [reason] its `finish_reason`
 */
export function statusLabel(status, reason = "") {
  const { icon: name, kind, word } = STATUSES[status] ?? { icon: "info", kind: "none", word: () => status };
  const why = reason && !PLAIN.has(reason) ? h("code.dim", reason) : null;
  const mark = name === "spin" ? h("i.spin") : icon(name);
  return h(`span.status.k-${kind}`, mark, h("span", word()), why);
}

/** @param {{status: string}} run whether it may still change */
export const isOpen = ({ status }) => ["queued", "running", "paused"].includes(status);

/** @param {{status: string, finish_reason: string, orphaned: boolean}} run */
export const runStatus = (run) =>
  run.orphaned
    ? h("span.status.row.k-warn", icon("alert"), t("interrupted"))
    : statusLabel(run.status, run.finish_reason);
