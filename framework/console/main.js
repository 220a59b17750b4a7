/** Starts the console. */

import { Component, define, failureNote, waitNote } from "./core/component.js";
import { fill, h } from "./core/dom.js";
import { loadLanguage } from "./core/i18n.js";
import { listenToKeys } from "./core/keys.js";
import { entered, watchServer } from "./core/live.js";
import { followAddress, go, link, route } from "./core/route.js";
import { applyTheme } from "./core/theme.js";
import { closedPage } from "./shell/places.js";
import { shell } from "./shell/shell.js";

/**
 * Each page is loaded when it is first opened, and exports the name of its element.
 * @type {Record<string, () => Promise<{tag: string}>>}
 */
const PAGES = {
  chat: () => import("./chat/page.js"),
  approvals: () => import("./approvals/page.js"),
  runs: () => import("./runs/page.js"),
  compare: () => import("./compare/page.js"),
  agents: () => import("./agents/page.js"),
  config: () => import("./config/page.js"),
  fleet: () => import("./fleet/page.js"),
  memory: () => import("./memory/page.js"),
  usage: () => import("./usage/page.js"),
};

/** @param {string} page whose script is loaded while the server is asked who the visitor is */
function preload(page) {
  const href = import.meta.resolve(`./${page}/page.js`);
  if (PAGES[page]) document.head.append(h("link", { rel: "modulepreload", href }));
}

/** Shows the page of the present place. A page stays while only the rest of the place changes. */
class ConsolePages extends Component {
  #shown = "";

  start() {
    this.watch(route, () => void this.#show());
    this.watch(entered, () => void this.#show());
  }

  async #show() {
    const { page } = route.value;
    if (!PAGES[page]) return go(link("chat"), { replace: true });
    if (page === this.#shown) return;
    if (!entered.value) return;
    this.#shown = page;
    fill(this, h("div.loading", waitNote()));
    const closed = closedPage(route.value);
    if (closed) return page === route.value.page && fill(this, closed);
    try {
      const { tag } = await PAGES[page]();
      if (page === this.#shown) fill(this, h(tag));
    } catch (error) {
      const again = () => ((this.#shown = ""), void this.#show());
      if (page === this.#shown) fill(this, failureNote(/** @type {Error} */ (error), again));
    }
  }
}

define("console-pages", ConsolePages);
applyTheme();
preload(route.value.page);
watchServer(); // its first response comes while the page is built
await loadLanguage();
followAddress();
listenToKeys();
fill(document.body, shell(h("console-pages")));
document.body.className = "";
