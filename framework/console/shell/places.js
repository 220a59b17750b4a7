/** The pages of the console, and where the reader is: breadcrumbs, title, navigation by keyboard. */

import { h } from "../core/dom.js";
import { digest, runName } from "../core/format.js";
import { t } from "../core/i18n.js";
import { icon } from "../core/icons.js";
import { identity, may, seesConfig } from "../core/live.js";
import { go, link } from "../core/route.js";

/** @typedef {{page: string, icon: string, label: string, key: string, open: () => boolean}} Place */

const reads = () => may("read");

/**
 * Return the places that the rail and `g` with a letter lead to. `open` says whether the key's roles suffice.
 * @returns {Place[]}
 */
export function places() {
  return [
    { page: "chat", icon: "chat", label: t("Chat"), key: "c", open: () => may("chat") || reads() },
    { page: "approvals", icon: "inbox", label: t("Approvals"), key: "a", open: () => may("decide") },
    { page: "runs", icon: "runs", label: t("Runs"), key: "r", open: reads },
    { page: "agents", icon: "agents", label: t("Agents"), key: "g", open: reads },
    { page: "config", icon: "layers", label: t("Config"), key: "f", open: seesConfig },
    { page: "fleet", icon: "fleet", label: t("Fleet"), key: "p", open: reads },
    { page: "memory", icon: "memory", label: t("Memory"), key: "m", open: reads },
    { page: "usage", icon: "usage", label: t("Usage"), key: "u", open: reads },
  ];
}

/**
 * Return what takes the place of a page that the key's roles do not allow, or null. Without an address, go to the first
 * page that they allow instead.
 * @param {import("../core/route.js").Route} route
 */
export function closedPage({ page, parts }) {
  const all = places();
  const found = all.find((place) => place.page === page);
  if (!identity.value || parts.length || !found || found.open()) return null;
  const first = all.find(({ open }) => open());
  if (!location.hash && first) go(link(first.page), { replace: true });
  const roles = identity.value.roles.join(", ");
  const why = t("The key {name} has the roles: {roles}.", { name: identity.value.name, roles });
  return h("div.empty", icon("key"), h("h2", t("This key does not open this page")), h("p", why));
}

/**
 * Return the breadcrumbs of a place, the page first; each but the last has an address.
 * @param {import("../core/route.js").Route} route
 * @returns {{label: string, href: string}[]}
 */
export function crumbs({ page, parts }) {
  if (page === "compare") return [{ label: t("Runs"), href: link("runs") }, { label: t("Compare"), href: "" }];
  const label = places().find((place) => place.page === page)?.label ?? page;
  const first = { label, href: link(page) };
  const [part, ...rest] = parts;
  if (!part || page === "chat") return [first];
  if (page === "config" && part === "files") return [first, { label: rest.join("/") || t("Files"), href: "" }];
  return [first, { label: partName(page, part), href: "" }];
}

/** @param {string} page @param {string} part */
function partName(page, part) {
  if (page === "config") return /^\d+$/.test(part) ? `g${part}` : part === "disk" ? t("On disk") : digest(part);
  return part.startsWith("run_") ? runName(part) : part;
}

/**
 * Go to a place, and put the focus at the page's beginning: the next Tab enters the page.
 * @param {string} hash
 */
export function visit(hash) {
  go(hash);
  document.getElementById("main")?.focus();
}
