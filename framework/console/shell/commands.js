/** What the palette finds: what waits, pages, agents, conversations, runs, and actions. */

import { get } from "../core/api.js";
import { runName, time } from "../core/format.js";
import { language, setLanguage, t } from "../core/i18n.js";
import { approvals, identity, may } from "../core/live.js";
import { link } from "../core/route.js";
import { switchTheme } from "../core/theme.js";
import { showAccount } from "./account.js";
import { showKeys } from "./help.js";
import { places, visit } from "./places.js";

/**
 * @typedef {{group: string, icon: string, label: string, note?: string, keys?: string[], q?: string,
 *   run: () => void}} Command q: the text that the server found it by
 */

/** Return what is known without asking the server. @returns {Command[]} */
export function ownCommands() {
  const waiting = approvals.value.items.flatMap(({ run_id, pending, message }) =>
    pending.map(({ id, tool }) => ({
      group: t("Needs approval"),
      icon: "human",
      label: t("Decide {tool}: {message}", { tool: tool || t("a plan"), message }),
      run: () => visit(link("approvals", run_id, id)),
    })),
  );
  const pages = places().filter(({ open }) => open());
  const goTo = pages.map(({ page, icon, label, key }) => {
    return { group: t("Go to"), icon, label, keys: ["G", key.toUpperCase()], run: () => visit(link(page)) };
  });
  return [...waiting, ...goTo, ...actions()];
}

/** @returns {Command[]} */
function actions() {
  const group = t("Do");
  const edits = may("admin") && identity.value?.server.allow_edit;
  const other = language === "zh" ? "en" : "zh";
  return [
    { group, icon: "plus", label: t("New conversation"), run: () => visit(link("chat")) },
    ...(edits ? [{ group, icon: "edit", label: t("Edit the files"), run: () => visit(link("config", "files")) }] : []),
    { group, icon: "theme", label: t("Switch between light and dark"), run: switchTheme },
    { group, icon: "globe", label: other === "zh" ? "中文" : "English", run: () => setLanguage(other) },
    { group, icon: "info", label: t("Show the keyboard shortcuts"), keys: ["?"], run: showKeys },
    { group, icon: "human", label: t("Show who is signed in"), run: showAccount },
  ];
}

/**
 * Return the agents and the latest conversations and runs, or those that contain a text, if the key may see them.
 * @param {AbortSignal} signal @param {string} [q]
 * @returns {Promise<Command[]>}
 */
export async function storedCommands(signal, q) {
  if (!may("read")) return [];
  const [{ agents }, { conversations }, { runs }] = await Promise.all([
    q ? { agents: [] } : get("/agents", {}, { signal }),
    get("/conversations", { limit: 50, q }, { signal }),
    get("/runs", { limit: 50, q }, { signal }),
  ]);
  const found = (/** @type {string} */ group, /** @type {string} */ icon, /** @type {any[]} */ items) =>
    items.map(([label, note, ...place]) => ({ group, icon, label, note, q, run: () => visit(link(...place)) }));
  return [
    ...found(t("Agents"), "agents", agents.map((/** @type {any} */ a) => [a.name, a.description, "agents", a.name])),
    ...found(t("Conversations"), "chat", conversations.map(conversation)),
    ...found(t("Runs"), "runs", runs.map(run)),
  ];
}

/** @param {{conversation_id: string, title: string, updated_at: string, user: string | null}} found */
const conversation = ({ conversation_id: id, title, updated_at, user }) => {
  return [title || id, time(updated_at), "chat", id, { user }];
};

/** @param {{run_id: string, agent: string, message: string, created_at: string}} found */
const run = ({ run_id: id, agent, message, created_at }) => {
  return [`${runName(id)} · ${message || agent}`, time(created_at), "runs", id];
};
