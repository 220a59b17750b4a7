/** The frame around the pages. */

import { h } from "../core/dom.js";
import { t } from "../core/i18n.js";
import { onKeys } from "../core/keys.js";
import { link } from "../core/route.js";
import { askWhenNeeded } from "./account.js";
import { bar } from "./bar.js";
import { showKeys } from "./help.js";
import { lostNote } from "./lost.js";
import { openPalette } from "./palette.js";
import { places, visit } from "./places.js";
import { rail } from "./rail.js";
import { announceReloads } from "./reloads.js";

/**
 * Return the frame around the pages.
 * @param {HTMLElement} pages
 * @returns {HTMLElement[]}
 */
export function shell(pages) {
  const toPages = Object.fromEntries(places().map(({ page, key }) => [`g ${key}`, () => visit(link(page))]));
  const keys = { "Control+k": openPalette, "?": showKeys, ...toPages };
  onKeys(null, keys, new AbortController().signal);
  announceReloads();
  const main = h("main.page#main", { tabindex: "-1" }, pages);
  const skip = h("button.skip", { onclick: () => main.focus() }, t("Skip to content"));
  // The dialog for a key needs the page: it opens when the page is there.
  queueMicrotask(askWhenNeeded);
  return [skip, rail(), bar(), main, lostNote()];
}
