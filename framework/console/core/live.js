/** What every page needs to know of the server, kept up to date: who asks, what is live, what waits for a person. */

import { access, apiKey, connection, get } from "./api.js";
import { link } from "./route.js";
import { signal } from "./signal.js";
import { follow } from "./stream.js";

const VISIBLE = 4_000;
const HIDDEN = 20_000;

/** @typedef {import("../types.d.ts").PendingRun} PendingRun */

/** Who asks: `GET /agent/me`. */
export const identity = signal(/** @type {import("../types.d.ts").Me | null} */ (null));
/** Whether the server has accepted the key, or needs none: pages wait for it. */
export const entered = signal(false);
/** What is live: `GET /agent/config`. Null for keys that are limited to some agents. */
export const live = signal(/** @type {import("../types.d.ts").LiveConfig | null} */ (null));
/** The runs that wait for a decision. */
export const approvals = signal({ count: 0, items: /** @type {PendingRun[]} */ ([]) });
/** The last event of the configuration. */
export const configEvents = signal(/** @type {import("../types.d.ts").ConfigEvent | null} */ (null));

/** @param {string} role such as "decide" */
export const may = (role) => identity.value?.roles.includes(role) ?? false;

/** Whether the key may see the configuration, which concerns all agents. */
export const seesConfig = () => may("read") && identity.value?.agents === null;

/**
 * Return the address of a conversation. Each user may have one with its id; a key with a user sees only its own.
 * @param {string} id @param {string | null} [user]
 */
export const talkLink = (id, user) => link("chat", id, { user: identity.value?.user ? null : user });

/** Keep the signals up to date as long as the page is open. */
export function watchServer() {
  apiKey.subscribe(() => void begin());
  connection.subscribe((state) => state === "up" && void (identity.value ? refresh() : begin()));
  void begin();
  void poll();
}

/** Ask again which runs wait for a decision. */
export async function refreshApprovals() {
  if (!may("decide")) return;
  const found = await get("/approvals", { limit: 100 }).catch(() => null);
  if (!found) return;
  const items = found.approvals;
  const same = JSON.stringify(items) === JSON.stringify(approvals.value.items);
  if (!same) approvals.value = { count: found.waiting, items };
}

async function begin() {
  const me = await get("/me").catch(() => null);
  if (me) identity.value = me;
  if (access.value !== "open") return;
  entered.value = true;
  if (seesConfig() && !follows) void followConfig();
  await refresh();
}

let follows = false;

async function followConfig() {
  follows = true;
  await follow("/events", { signal: new AbortController().signal, onEvent }).catch(() => {}); // another key may not
  follows = false;
}

async function refresh() {
  const asked = seesConfig() ? get("/config").catch(() => null) : null;
  const [config] = await Promise.all([asked, refreshApprovals()]);
  if (config && JSON.stringify(config) !== JSON.stringify(live.value)) live.value = config;
}

/** @param {import("../types.d.ts").ConfigEvent} event */
function onEvent(event) {
  configEvents.value = event;
  void refresh();
}

async function poll() {
  for (let round = 1; ; round += 1) {
    await new Promise((resolve) => setTimeout(resolve, document.hidden ? HIDDEN : VISIBLE));
    if (access.value !== "open") continue;
    // A broken file that is mended as it was is no event.
    if (round % 5 === 0 && seesConfig()) await refresh();
    // Without the role to decide, this is how a revoked key and a lost connection are noticed.
    await (may("decide") ? refreshApprovals() : get("/me").catch(() => {}));
  }
}
