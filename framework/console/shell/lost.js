/** The note that there is no connection, and that everything is up to date again. */

import { connection, get } from "../core/api.js";
import { fill, h } from "../core/dom.js";
import { t } from "../core/i18n.js";
import { icon } from "../core/icons.js";

const AFTER_MS = 2_000;
const DONE_MS = 3_000;

export function lostNote() {
  const node = h("div.lost", { role: "status" });
  let timer = 0;
  const show = () => {
    clearTimeout(timer);
    const lost = connection.value === "lost";
    document.documentElement.classList.toggle("offline", lost);
    if (lost) timer = setTimeout(() => fill(node, noConnection()), AFTER_MS);
    else if (node.firstChild) {
      fill(node, h("div.note.k-ok", icon("check"), h("div", t("Up to date"))));
      timer = setTimeout(() => fill(node), DONE_MS);
    }
  };
  connection.subscribe(show);
  show();
  return node;
}

function noConnection() {
  const again = h("button.btn.sm", { onclick: tryNow }, t("Try now"));
  const text = t("Runs continue on the server, and nothing that you see here is lost.");
  return h("div.note.k-warn", icon("off"), h("div", h("b", t("No connection.")), ` ${text}`), h("div.do", again));
}

function tryNow() {
  get("/me").catch(() => {});
}
