/** The configuration: generations and what is on the disk, or the editor of one file. */

import { Component, define, failureNote } from "../core/component.js";
import { fill, h } from "../core/dom.js";
import { route } from "../core/route.js";

class ConfigPage extends Component {
  #shown = "";

  start() {
    this.watch(route, ({ page, parts }) => page === "config" && void this.#show(parts[0] === "files"));
  }

  /** @param {boolean} editor */
  async #show(editor) {
    const name = editor ? "editor" : "history";
    if (name === this.#shown) return;
    this.#shown = name;
    try {
      const { tag } = await (editor ? import("../editor/page.js") : import("./history.js"));
      if (name === this.#shown) fill(this, h(tag));
    } catch (error) {
      fill(this, failureNote(/** @type {Error} */ (error)));
    }
  }
}

export const tag = "page-config";
define(tag, ConfigPage);
