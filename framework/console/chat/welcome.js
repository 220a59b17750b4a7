/** What a new conversation shows: what the agents do. */

import { fill, h } from "../core/dom.js";
import { t } from "../core/i18n.js";
import { icon } from "../core/icons.js";
import { link } from "../core/route.js";

const MOST = 6;

/** @typedef {{name: string, description: string}} Agent */

/** @param {HTMLElement} element @param {Agent[]} agents */
export function showWelcome(element, agents) {
  const text = t("An agent is chosen by what you write. Name one with @, or begin with one of these.");
  const list = h("div.starters", agents.slice(0, MOST).map(starter));
  fill(element, icon("chat"), h("h2", t("What should be done?")), h("p", text), list);
}

/** @param {Agent} agent */
function starter({ name, description }) {
  return h("a.starter", { href: link("chat", { agent: name }) }, icon("agents"), h("b", name), h("span", description));
}
