/** The list of keyboard shortcuts. */

import { h } from "../core/dom.js";
import { t } from "../core/i18n.js";
import { isBuilt } from "../core/libraries.js";
import { openDialog } from "../widgets/dialog.js";
import { places } from "./places.js";

let isOpen = false;

export function showKeys() {
  if (isOpen) return;
  isOpen = true;
  const title = t("Keyboard shortcuts");
  const sections = shortcuts().map(([name, rows]) => {
    const list = rows.map(([keys, text]) => h("div", h("dt", text), h("dd", marks(keys))));
    return h("section", h("h3", name), h("dl", list));
  });
  const close = () => leave();
  const done = h("button.btn", { autofocus: true, onclick: close }, t("Close"));
  const text = h("div.in", h("h2.h15", title), h("div.keys", sections), isBuilt ? null : bare());
  const content = h("section", text, h("footer", done));
  const leave = openDialog(content, { label: title, kind: "wide", onClose: () => (isOpen = false) });
}

/** What a console lacks that is served as modules of a checkout. */
const bare = () =>
  h("p.dim", t("This console is not built: Markdown is plain text, and the editor is a plain field."));

/** @param {string} keys separated by spaces */
const marks = (keys) => keys.split(" ").map((key) => h("kbd", key));

/** @returns {[string, [string, string][]][]} heading, then keys and what they do */
function shortcuts() {
  return [
    [t("Go to"), places().map(({ key, label }) => [`G ${key.toUpperCase()}`, label])],
    [
      t("Everywhere"),
      [
        ["Ctrl K", t("Search or run a command")],
        ["/", t("Search in this page")],
        ["?", t("Show the keyboard shortcuts")],
        ["Esc", t("Close; leave a field; in a chat, stop the run")],
      ],
    ],
    [
      t("Lists and trees"),
      [
        ["J K", t("Next, previous")],
        ["Enter", t("Open")],
        ["← →", t("Fold, unfold")],
        ["[ ]", t("Hide a column")],
      ],
    ],
    [
      t("Chat"),
      [
        ["N", t("New conversation")],
        ["Enter", t("Send")],
        ["Shift Enter", t("New line")],
      ],
    ],
    [
      t("An approval"),
      [
        ["A", t("Approve")],
        ["M", t("Remember…")],
        ["E", t("Edit; again: undo the edits")],
        ["R", t("Reject")],
        ["S", t("Respond")],
        ["Ctrl Enter", t("Send what is edited")],
      ],
    ],
    [
      t("Runs"),
      [
        ["C X", t("Compare: begin, choose the run with the focus")],
        ["S", t("In a comparison: swap both runs")],
      ],
    ],
    [
      t("Editor"),
      [
        ["Ctrl S", t("Apply")],
        ["Ctrl Space", t("Complete")],
        ["Alt Enter", t("Take the fix")],
      ],
    ],
  ];
}
