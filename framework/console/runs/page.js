/** The runs: a list, or one of them. */

import { Component, define } from "../core/component.js";
import { fill, h } from "../core/dom.js";
import { route } from "../core/route.js";
import "./list.js";
import "./detail.js";

class RunsPage extends Component {
  #shown = "none";

  start() {
    this.watch(route, ({ page, parts: [id = ""] }) => {
      if (page !== "runs" || id === this.#shown) return;
      this.#shown = id;
      fill(this, h(id ? "run-detail" : "runs-list", { "data-id": id }));
    });
  }
}

export const tag = "page-runs";
define(tag, RunsPage);
