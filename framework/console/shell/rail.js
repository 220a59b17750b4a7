/** The rail at the left (below 760 px a bar at the bottom): pages, theme, language, who is signed in. */

import { apiKey } from "../core/api.js";
import { fill, h } from "../core/dom.js";
import { language, setLanguage, t, tn } from "../core/i18n.js";
import { icon } from "../core/icons.js";
import { approvals, identity } from "../core/live.js";
import { link, route } from "../core/route.js";
import { switchTheme } from "../core/theme.js";
import { menu } from "../widgets/menu.js";
import { showAccount, signOut } from "./account.js";
import { showKeys } from "./help.js";
import { places } from "./places.js";

/** The language that is not chosen. @type {{id: "en" | "zh", label: string, short: string}} */
const OTHER =
  language === "zh" ? { id: "en", label: "English", short: "EN" } : { id: "zh", label: "中文", short: "中" };

export function rail() {
  const links = places().map((place) => h("li", pageLink(place)));
  const person = h("button.avatar.k-accent");
  menu(person, accountItems);
  const showPerson = () => {
    const me = identity.value;
    person.hidden = !me;
    places().forEach(({ open }, i) => (links[i].hidden = me !== null && !open()));
    fill(person, initials(me?.user ?? me?.name ?? ""));
    for (const [name, value] of Object.entries(named(t("Signed in as {name}", { name: me?.user ?? me?.name ?? "" }))))
      person.setAttribute(name, value);
  };
  identity.subscribe(showPerson);
  showPerson();
  const theme = h("button.ib", { onclick: switchTheme, ...named(t("Switch between light and dark")) });
  theme.append(icon("theme"));
  return h(
    "nav.rail",
    { "aria-label": t("Console") },
    h("a.mark", { href: link("chat"), "aria-label": "agentsd" }, icon("mark")),
    h("ul", links),
    h("div.end", theme, languageButton(), person),
  );
}

/** @param {import("./places.js").Place} place */
function pageLink({ page, icon: name, label }) {
  const item = h("a", { href: link(page) }, icon(name), label);
  const mark = () => {
    const shown = route.value.page === "compare" ? "runs" : route.value.page;
    if (shown === page) item.setAttribute("aria-current", "page");
    else item.removeAttribute("aria-current");
  };
  route.subscribe(mark);
  mark();
  if (page === "approvals") item.append(badge());
  return item;
}

function badge() {
  const node = h("span.n");
  const show = ({ count = 0 }) => {
    node.hidden = count === 0;
    fill(node, h("span", { "aria-hidden": "true" }, count > 99 ? "99+" : count), h("span.sr", waiting(count)));
  };
  approvals.subscribe(show);
  show(approvals.value);
  return node;
}

/** @param {number} count */
const waiting = (count) => tn(count, "1 waits for a decision", "{n} wait for a decision");

function languageButton() {
  const { id, label, short } = OTHER;
  return h("button.ib.small", { lang: id, onclick: () => setLanguage(id), ...named(label) }, short);
}

/** @returns {(import("../widgets/menu.js").MenuItem | null)[]} */
export const accountItems = () => [
  { label: t("Show who is signed in"), icon: "human", run: showAccount },
  { label: t("Show the keyboard shortcuts"), icon: "info", run: showKeys },
  { label: t("Switch between light and dark"), icon: "theme", run: switchTheme },
  { label: OTHER.label, icon: "globe", run: () => setLanguage(OTHER.id) },
  ...(apiKey.value ? [null, { label: t("Sign out"), icon: "key", run: signOut }] : []),
];

/** @param {string} label */
const named = (label) => ({ title: label, "aria-label": label });

/** @param {string} name */
function initials(name) {
  const words = name.split(/[^\p{L}\p{N}]+/u).filter(Boolean);
  return (words.length > 1 ? words[0][0] + words[1][0] : name.slice(0, 2)).toUpperCase();
}
