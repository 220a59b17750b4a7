/** Copies texts, and addresses of places in the console. */

import { h } from "../core/dom.js";
import { t } from "../core/i18n.js";
import { icon } from "../core/icons.js";
import { toast } from "./toast.js";

/**
 * Return a button that copies a text, and says so for two seconds.
 * @param {string | (() => string)} text
 * @param {string} [label]
 * @param {string} [mark] its icon
 */
export function copyButton(text, label = t("Copy"), mark = "copy") {
  const button = h("button.ib", { title: label, "aria-label": label }, icon(mark));
  button.addEventListener("click", async () => {
    const done = await write(typeof text === "string" ? text : text());
    button.replaceChildren(icon(done ? "check" : "x"));
    button.setAttribute("aria-label", done ? t("Copied") : t("The browser does not allow copying"));
    setTimeout(() => {
      button.replaceChildren(icon(mark));
      button.setAttribute("aria-label", label);
    }, 2000);
  });
  return button;
}

/** @param {string} hash an address in the console @returns its whole URL, to be sent to others */
export const urlOf = (hash) => location.href.split("#", 1)[0] + hash;

/** Copy a text, and say so. @param {string} text */
export async function copyText(text) {
  const done = await write(text);
  toast({ title: done ? t("Copied") : t("The browser does not allow copying"), tone: done ? "ok" : "danger" });
}

/** @param {string} text */
async function write(text) {
  try {
    await navigator.clipboard.writeText(text); // only on secure origins: https, and this machine
    return true;
  } catch {
    return false;
  }
}
