/** The decisions that a confirmation accepts, as buttons. */

import { h } from "../core/dom.js";
import { t } from "../core/i18n.js";
import { isFixed, isProposal, isQuestion } from "./approval-view.js";
import { copyButton } from "./copy.js";
import { openRemember } from "./remember.js";

/**
 * @typedef {object} View
 * @property {import("./approval-card.js").Subject} subject
 * @property {import("./approval-body.js").Body | null} body
 * @property {"" | "reject" | "respond"} writing
 * @property {HTMLTextAreaElement} text
 * @property {boolean} locked
 * @property {boolean} editing
 * @property {any} note
 */
/**
 * @typedef {object} Acts
 * @property {() => void} approve
 * @property {() => void} edit
 * @property {(what: "" | "reject" | "respond") => void} write
 * @property {() => void} finish
 * @property {(decision: import("../types.d.ts").Decision) => void} send
 */

/** Acts in a field, too. */
const SEND = "Ctrl ↵";
/** @type {Record<string, () => string>} */
const CHOICES = {
  retry: () => t("Try the step again"),
  skip: () => t("Skip the step"),
  stop: () => t("Stop the run"),
};

/**
 * Return the field for a reason, a response or an answer.
 * @param {() => void} oninput
 * @param {() => void} leave called for Escape
 */
export function writingBox(oninput, leave) {
  const onkeydown = (/** @type {KeyboardEvent} */ event) => {
    if (event.key !== "Escape") return;
    event.preventDefault();
    leave();
  };
  return h("textarea", { class: "input", "data-act": "text", rows: "3", oninput, onkeydown });
}

/** @param {View} view @param {Acts} acts */
export function buttons(view, acts) {
  const note = view.note ? h("p.note-line.small.row", { role: "status" }, view.note) : null;
  if (view.writing) return [view.text, note, writeButtons(view, acts)];
  return [note, isQuestion(view.subject.confirmation) ? answers(view, acts) : decisions(view, acts)];
}

/** @param {import("./approval-card.js").Subject} subject for a key that may not decide */
export function explanation({ runId }) {
  const text = t("Your key lacks the role decide. Someone who has it can decide here, or with");
  const command = `agentsd runs decide ${runId}`;
  return h("p.small.dim.grow", text, " ", h("code", command), " ", copyButton(command));
}

/** @param {View} view @param {Acts} acts */
function decisions({ subject, body, locked, editing }, { approve, edit, write, send }) {
  const remember = () => openRemember(subject, (chosen) => send({ type: "approve", remember: chosen }));
  const wrong = (body?.problems().length ?? 0) > 0;
  const respond = button("respond", "ghost", t("Respond"), "S", () => write("respond"), locked);
  if (!isProposal(subject.confirmation)) {
    return [
      button("approve", "primary", t("I have been there: continue"), "A", approve, locked),
      h("span.grow"),
      button("reject", "ghost danger", t("Reject"), "R", () => write("reject"), locked),
    ];
  }
  return [
    button("approve", "primary", body?.action() ?? t("Approve"), editing ? SEND : "A", approve, locked || wrong),
    subject.confirmation.remember && !editing ? button("remember", "", t("Remember…"), "M", remember, locked) : null,
    body ? button("edit", "", editing ? t("Undo") : t("Edit"), "E", edit, locked) : null,
    h("span.grow"),
    isFixed(subject.confirmation) ? null : respond,
    button("reject", "ghost danger", t("Reject"), "R", () => write("reject"), locked),
  ];
}

/** @param {View} view @param {Acts} acts */
function answers({ subject, body, text, locked }, { send, write, finish }) {
  const { kind, choices, form } = subject.confirmation;
  const decline = button("reject", "ghost danger", t("Do not answer"), "R", () => write("reject"), locked);
  const last = [h("span.grow"), kind === "step" ? null : decline];
  if (form) {
    const off = locked || !body || body.problems().length > 0;
    const fill = () => body && send({ type: "respond", values: body.value() });
    return [button("fill", "primary", t("Send"), SEND, fill, off), last];
  }
  if (choices.length) {
    const word = (/** @type {string} */ one) => (kind === "step" && CHOICES[one]?.()) || one;
    const answer = (/** @type {string} */ text) => send({ type: "respond", text });
    return [choices.map((one, i) => button(`c${i}`, "", word(one), "", () => answer(one), locked)), last];
  }
  text.setAttribute("aria-label", t("Answer"));
  return [text, button("send", "primary", t("Answer"), SEND, finish, locked || !text.value.trim()), last];
}

/** @param {View} view @param {Acts} acts */
function writeButtons({ writing, text, locked }, { write, finish }) {
  const rejects = writing === "reject";
  const hint = rejects ? t("Reason, which the model reads (optional)") : t("The model reads this instead of a result");
  text.setAttribute("aria-label", hint);
  text.placeholder = hint;
  const off = locked || (!rejects && !text.value.trim());
  const label = rejects ? t("Reject") : t("Respond");
  const send = button("send", rejects ? "primary danger" : "primary", label, SEND, finish, off);
  return [send, button("back", "", t("Cancel"), "", () => write(""), false)];
}

/**
 * @param {string} act names the button within its card
 * @param {string} kind classes
 * @param {string} label
 * @param {string} key
 * @param {() => void} run
 * @param {boolean} off
 */
function button(act, kind, label, key, run, off) {
  const props = { "data-act": act, class: kind, disabled: off, onclick: run };
  return h("button.btn", props, label, key ? h(key === SEND ? "kbd.any" : "kbd", key) : null);
}
