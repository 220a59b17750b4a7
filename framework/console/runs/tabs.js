/** What a run shows beside its steps: messages, files, its replay under the live files, and its test case. */

import { apiPath, get, post } from "../core/api.js";
import { failureNote, waitNote } from "../core/component.js";
import { fill, h } from "../core/dom.js";
import { runName } from "../core/format.js";
import { t, tn } from "../core/i18n.js";
import { icon } from "../core/icons.js";
import { link } from "../core/route.js";
import { copyButton } from "../widgets/copy.js";
import { openDialog } from "../widgets/dialog.js";
import { diffView } from "../widgets/diff.js";
import { argumentText } from "../widgets/json.js";
import { markdown } from "../widgets/markdown.js";
import { textBlock } from "../widgets/text.js";

/** @typedef {import("../types.d.ts").ChatMessage} Message */

/** Messages that are drawn until the reader asks for all. */
const MOST_MESSAGES = 200;

/** @param {import("../types.d.ts").RunDetail} run */
export function messagesTab(run) {
  const { messages } = run;
  const n = Math.max(run.earlier_messages, messages.length - MOST_MESSAGES);
  const tools = new Map(messages.flatMap((one) => one.tool_calls.map((call) => [call.id, call.tool])));
  const card = h("div.card.msgs");
  const show = (/** @type {Message[]} */ some) => some.map((one) => message(one, tools.get(one.tool_call_id ?? "")));
  const earlier = h(
    "button.btn.sm.ghost",
    tn(n, "Show 1 earlier message", "Show {n} earlier messages"),
  );
  earlier.onclick = () => earlier.parentElement?.replaceWith(...show(messages.slice(0, n)));
  card.append(...(n ? [h("div.pager", earlier)] : []), ...show(messages.slice(n)));
  return card;
}

/** @param {Message} one @param {string} [tool] */
function message({ role, content, tool_calls: calls, reasoning, status, parts }, tool) {
  const kind = {
    user: "accent",
    tool: status && status !== "success" ? "danger" : "tool",
    assistant: "model",
    system: "none",
  }[role];
  const label = [role, tool, status && status !== "success" ? status : null].filter(Boolean).join(" · ");
  const body = role === "tool" || role === "system" ? textBlock(content) : h("div.md", markdown(content));
  const thought = reasoning?.text
    ? h("details.dim", h("summary.small", t("Thought")), textBlock(reasoning.text))
    : null;
  const files = parts
    .filter((part) => part.type !== "text")
    .map((part) => h("span.tag", part.name || part.media_type || part.type));
  const asked = calls.map((call) => h("div.msg-call.mono", h("b", call.tool), " ", argumentText(call.arguments)));
  return h("div.msg", h(`span.label.ink.k-${kind}`, label), thought, content ? body : null, files, asked);
}

/** @typedef {import("../types.d.ts").RunFile} RunFile */

/** @param {import("../types.d.ts").RunDetail} run */
export function filesTab(run) {
  const box = h("div.stack");
  const done = (/** @type {Node[]} */ nodes) => (box.classList.remove("loading"), fill(box, nodes));
  const read = () => {
    box.classList.add("loading");
    fill(box, waitNote());
    get(apiPath`/runs/${run.run_id}/files`).then(
      (found) => done(shown(found)),
      (error) => done([failureNote(error, read)]),
    );
  };
  read();
  return box;
}

/** @param {import("../types.d.ts").RunFiles} found @returns {Node[]} */
function shown({ stored, files, generation, live_generation: now }) {
  if (!stored) {
    const why = t("A store in memory keeps no files: set store.url.");
    return [
      h("div.card", h("div.empty", icon("file"), h("h2", t("The files of this run are not stored")), h("p", why))),
    ];
  }
  const intro = t("The files of g{n}, compared with the live g{live}", { n: generation, live: now });
  return [h("p.dim", intro), ...files.map(fileCard)];
}

/** @param {RunFile} file */
function fileCard({ path, kind, change, text, live }) {
  const word = { same: t("the same"), changed: t("changed"), removed: t("removed"), added: t("added since") }[change];
  const tone = { same: "none", changed: "warn", removed: "danger", added: "ok" }[change];
  const role = kind === "agent" ? t("agent") : t("template");
  const mark = h(`span.tag.k-${tone}`, word);
  const head = h(
    "summary.row",
    icon("right", { size: 12 }),
    h("code.cut", path),
    h("span.dim.small", role),
    h("span.grow"),
    mark,
  );
  const edit = h("a.lk.small", { href: link("config", "files", ...path.split("/")) }, t("Open the live file"));
  const content = change === "same" ? textBlock(text ?? "", { lines: 60 }) : diffView(text ?? "", live ?? "");
  const body = h("div.in.stack", content, change === "removed" ? null : edit);
  return h("details.card.run-file", { open: change !== "same" }, head, body);
}

const LONG = new Set(["prompt", "plan", "output"]);

/** @param {string} id */
export function replay(id) {
  const stop = new AbortController();
  const note = t("Models and tools return their recorded answers.");
  const working = h("p.row", h("i.spin"), t("Replaying"));
  const close = dialog(t("Replay of {run}", { run: runName(id) }), note, working, () => stop.abort());
  const done = (/** @type {import("../types.d.ts").ReplayResult} */ result) => fill(close.body, differences(result));
  post(apiPath`/runs/${id}/replay`, undefined, { signal: stop.signal }).then(done, (error) =>
    fill(close.body, failureNote(error)),
  );
}

/** @param {import("../types.d.ts").ReplayResult} result */
function differences({ generation, differences: found }) {
  const n = { n: generation };
  if (!found.length)
    return h("div.note.k-ok", icon("check"), h("div", h("b", t("Nothing differs")), " ", t("under g{n}.", n)));
  return [h("p.strong", tn(found.length, "1 difference", "{n} differences")), ...found.map(difference)];
}

/** @param {import("../types.d.ts").ReplayResult["differences"][0]} one */
function difference({ what, subject, before, after }) {
  const names = {
    agent: t("agent"),
    offered: t("tools offered to"),
    prompt: t("prompt of"),
    asked: t("question"),
    call: t("call"),
    plan: t("plan"),
    record: t("the record"),
    status: t("status"),
    output: t("output"),
  };
  const title = h("p", h("b", names[/** @type {"call"} */ (what)] ?? what), " ", h("code", subject));
  if (LONG.has(what)) return h("div.stack.g2", title, diffView(before, after));
  const line = (/** @type {string} */ text, /** @type {string} */ kind) =>
    text && h(`span.l.${kind}`, `${kind === "del" ? "−" : "+"} ${text}`);
  return h("div.stack.g2", title, h("div.code.wrapped", line(before, "del"), line(after, "add")));
}

/** @param {string} id */
export function exportCase(id) {
  const note = t("An edit that changes the outcome fails the case.");
  const { body } = dialog(t("As a test case"), note, h("p.row", h("i.spin")));
  const done = (/** @type {{path: string, text: string}} */ { path, text }) => {
    const url = URL.createObjectURL(new Blob([text], { type: "application/yaml" }));
    const name = path.slice(path.lastIndexOf("/") + 1);
    const save = h("a.btn.sm", { href: url, download: name }, icon("download", { size: 14 }), t("Download"));
    const head = h("div.row", h("code.cut.grow", path), copyButton(text, t("Copy the case")), save);
    const block = h(
      "div.run-yaml",
      { tabindex: "0", role: "group", "aria-label": path },
      textBlock(text, { lines: 400 }),
    );
    fill(
      body,
      head,
      block,
      h("p.small.dim", t("If the file exists, append the case to its list."), " ", h("code", "agentsd test")),
    );
  };
  get(apiPath`/runs/${id}/test-case`).then(done, (error) => fill(body, failureNote(error)));
}

/** @param {string} title @param {string} note @param {Node} content @param {() => void} [onClose] */
function dialog(title, note, content, onClose) {
  const body = h("div.stack", content);
  const leave = h("button.btn", { onclick: () => close() }, t("Close"));
  const inside = h("div.in", h("h2.h15", title), h("p.sec", note), body);
  const close = openDialog(h("div", inside, h("footer", leave)), { label: title, kind: "wide", onClose });
  return { body, close };
}
