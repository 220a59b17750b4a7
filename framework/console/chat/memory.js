/** What this browser remembers: unsent texts, and the conversations of keys that may not list them. */

import { apiPath, get } from "../core/api.js";
import { identity, may } from "../core/live.js";

const DRAFTS = () => `agentsd.draft.${identity.value?.name}.`;
const CHATS = () => `agentsd.chats.${identity.value?.name}`;
const MOST_CHATS = 50;

/** @typedef {{text: string, agent: string | null, key?: string, sent?: string}} Draft key: of the last attempt */
/** @typedef {{conversation_id: string, title: string, updated_at: string, runs: string[]}} Chat */

/** @param {string | null} id of the conversation @returns {Draft} */
export function draft(id) {
  return { text: "", agent: null, ...read(DRAFTS() + (id ?? "")) };
}

/** @param {string | null} id @param {Draft} value */
export function saveDraft(id, value) {
  if (value.text || value.agent) localStorage.setItem(DRAFTS() + (id ?? ""), JSON.stringify(value));
  else localStorage.removeItem(DRAFTS() + (id ?? ""));
}

/** @returns {Chat[]} the conversations that began here, the latest first */
export const localChats = () => read(CHATS())?.chats ?? [];

/** @param {string} id @param {string} run @param {string} message */
export function rememberRun(id, run, message) {
  if (may("read")) return;
  const chats = localChats();
  const known = chats.find((chat) => chat.conversation_id === id);
  const title = known?.title ?? message.slice(0, 200);
  const runs = [...(known?.runs ?? []), run];
  const chat = { conversation_id: id, title, updated_at: new Date().toISOString(), runs };
  const others = chats.filter((each) => each !== known).slice(0, MOST_CHATS - 1);
  localStorage.setItem(CHATS(), JSON.stringify({ chats: [chat, ...others] }));
}

/** @param {string} id the runs of a conversation, as `GET /agent/runs` lists them */
export async function localRuns(id) {
  const known = localChats().find((chat) => chat.conversation_id === id)?.runs ?? [];
  const runs = await Promise.all(known.map((run) => get(apiPath`/runs/${run}`).catch(() => null)));
  return { runs: runs.filter(Boolean).reverse(), next: null };
}

/** @param {string} name @returns {any} */
function read(name) {
  try {
    return JSON.parse(localStorage.getItem(name) ?? "null");
  } catch {
    return null;
  }
}
