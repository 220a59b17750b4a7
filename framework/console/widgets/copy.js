/** A button that copies a text. */

import { h } from "../core/dom.js";
import { t } from "../core/i18n.js";
import { icon } from "../core/icons.js";

/**
 * Return a button that copies a text, and says so for two seconds.
 * @param {string | (() => string)} text
 * @param {string} [label]
 */
export function copyButton(text, label = t("Copy")) {
  const button = h("button.ib", { title: label, "aria-label": label }, icon("copy"));
  button.addEventListener("click", async () => {
    const done = await write(typeof text === "string" ? text : text());
    button.replaceChildren(icon(done ? "check" : "x"));
    button.setAttribute("aria-label", done ? t("Copied") : t("The browser does not allow copying"));
    setTimeout(() => {
      button.replaceChildren(icon("copy"));
      button.setAttribute("aria-label", label);
    }, 2000);
  });
  return button;
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
