/** The bar at the top: where the reader is, search, what is live; and the title of the window. */

import { connection } from "../core/api.js";
import { fill, h } from "../core/dom.js";
import { digest } from "../core/format.js";
import { t, tn } from "../core/i18n.js";
import { icon } from "../core/icons.js";
import { approvals, live } from "../core/live.js";
import { link, route } from "../core/route.js";
import { menu } from "../widgets/menu.js";
import { openPalette } from "./palette.js";
import { crumbs } from "./places.js";
import { accountItems } from "./rail.js";

export function bar() {
  const label = t("Search or run a command");
  const find = h("button.find", { onclick: openPalette, "aria-label": label });
  fill(find, icon("search", { size: 14 }), h("span.grow.cut", label), h("kbd", "Ctrl K"));
  const more = h("button.ib", { "aria-label": t("More") }, icon("more"));
  menu(more, accountItems); // the rail has no room for these on a phone
  return h("header.bar", breadcrumbs(), h("span.grow"), find, chip(), h("div.only", more));
}

function breadcrumbs() {
  const row = h("div.crumb");
  const show = () => {
    const found = crumbs(route.value);
    const last = found.at(-1)?.label ?? "";
    const outer = found.slice(0, -1).map(({ label, href }) => [h("a", { href }, label), icon("right", { size: 14 })]);
    fill(row, outer, h("h1.cut", last));
    setTitle(found.map(({ label }) => label));
  };
  route.subscribe(show);
  approvals.subscribe(show);
  show();
  return row;
}

/** @param {string[]} labels from the page inwards */
function setTitle(labels) {
  const { count } = approvals.value;
  const name = [...labels.reverse(), "agentsd"].join(" · ");
  document.title = count ? `(${count}) ${name}` : name;
}

/** The live generation, as a link to the configuration. */
function chip() {
  const node = h("a.live", { href: link("config") });
  const show = () => {
    node.hidden = live.value === null;
    if (!live.value) return;
    const { generation, digest: whole } = live.value;
    const { mark, words, title } = chipState(live.value, connection.value === "lost");
    fill(node, mark, `g${generation}`, words ? h("span", words) : h("span.hash", digest(whole)));
    node.title = title;
    node.setAttribute("aria-label", `${t("Generation {n}", { n: generation })}, ${title}`);
  };
  live.subscribe(show);
  connection.subscribe(show);
  show();
  return node;
}

/**
 * @param {import("../types.d.ts").LiveConfig} config
 * @param {boolean} lost
 */
function chipState({ held, problems }, lost) {
  const errors = problems.filter(({ severity }) => severity === "error").length;
  if (lost) return { mark: h("span.dot.k-warn"), words: t("no connection"), title: t("last known; no connection") };
  if (errors) {
    const words = tn(errors, "1 problem", "{n} problems");
    return { mark: h("span.dot.hollow.k-danger"), words, title: t("live; files on disk have problems") };
  }
  if (held) return { mark: icon("pin", { size: 14 }), words: t("held"), title: t("held after a rollback") };
  return { mark: h("span.dot.k-ok"), words: "", title: t("live, the same as the files") };
}
