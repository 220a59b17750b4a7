/** Tells of changes of the configuration: what went live, and what cannot. */

import { h } from "../core/dom.js";
import { t, tn } from "../core/i18n.js";
import { configEvents } from "../core/live.js";
import { link } from "../core/route.js";
import { effectTag } from "../widgets/changes.js";
import { problemCard } from "../widgets/problem-card.js";
import { toast } from "../widgets/toast.js";

/** @typedef {import("../types.d.ts").ConfigEvent} ConfigEvent */

const MOST_CHANGES = 4;
const MOST_CHARS = 200;
const EFFECTS = /** @type {const} */ (["widens", "tightens"]);
/** @type {(() => void) | null} */
let closeRejected = null;

export function announceReloads() {
  configEvents.subscribe((event) => {
    if (!event) return;
    closeRejected?.();
    closeRejected = null;
    if (event.event === "config_rejected") closeRejected = rejected(event);
    else closeRejected = reloaded(event);
  });
}

/** @param {Extract<ConfigEvent, {event: "config_reloaded"}>} event */
function reloaded({ generation, digest, changes = [], problems = [] }) {
  const errors = problems.filter(({ severity }) => severity === "error");
  const effect = EFFECTS.find((one) => changes.some((change) => change.effect === one));
  toast({
    title: t("Generation {n} is live", { n: generation }),
    tone: "ok",
    body: changes.length ? changed(changes) : null,
    mark: effect ? effectTag(effect) : null,
    action: { label: t("Open diff"), href: link("config", generation) },
  });
  return errors.length ? problemToast(t("A file keeps its last good version"), errors) : null;
}

/** @param {Extract<ConfigEvent, {event: "config_rejected"}>} event */
function rejected({ generation, problems }) {
  return problemToast(t("These files cannot go live; generation {n} stays", { n: generation }), problems);
}

/** @param {string} title @param {import("../types.d.ts").Problem[]} problems */
function problemToast(title, problems) {
  const more = problems.length - 1;
  const rest = more > 0 ? h("p.dim", tn(more, "and 1 more problem", "and {n} more problems")) : null;
  const action = { label: t("Open configuration"), href: link("config") };
  const body = h("div.stack", problems.slice(0, 1).map((problem) => problemCard(problem)), rest);
  return toast({ title, tone: "danger", body, stay: true, action });
}

/** @param {import("../types.d.ts").Change[]} changes */
function changed(changes) {
  const more = changes.length - MOST_CHANGES;
  const rest = more > 0 ? h("p.dim", tn(more, "and 1 more change", "and {n} more changes")) : null;
  return h("div.stack", changes.slice(0, MOST_CHANGES).map(changeRow), rest);
}

/** @param {import("../types.d.ts").Change} change */
function changeRow({ agent, key, before, after }) {
  const line = (/** @type {string} */ kind, /** @type {string} */ sign, /** @type {unknown} */ value) =>
    (value ?? null) === null ? null : h(`span.l.${kind}`, `${sign} ${JSON.stringify(value).slice(0, MOST_CHARS)}`);
  const name = h("span.l.hunk", key ? `${agent}: ${key}` : agent);
  return h("code.code.wrapped", name, line("del", "−", before), line("add", "+", after));
}
