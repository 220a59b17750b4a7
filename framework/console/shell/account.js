/** Keys: the dialog that asks for one, and the one that shows what the present key allows. */

import { access, apiKey, forgetKey, useKey } from "../core/api.js";
import { h } from "../core/dom.js";
import { t } from "../core/i18n.js";
import { icon } from "../core/icons.js";
import { identity } from "../core/live.js";
import { openDialog } from "../widgets/dialog.js";

/** @type {(() => void) | null} */
let closeLogin = null;

/** Ask for a key whenever the server requires one. The page behind keeps what it shows. */
export function askWhenNeeded() {
  const check = () => {
    const locked = access.value !== "open";
    document.documentElement.classList.toggle("locked", locked);
    if (locked) closeLogin ??= login(access.value === "revoked");
    else closeLogin?.();
  };
  access.subscribe(check);
  check();
}

/** @param {boolean} revoked */
function login(revoked) {
  const key = h("input", { class: "input mono", type: "password", required: true, autocomplete: "current-password" });
  const remember = h("input", { type: "checkbox" });
  const problem = h("p.ink.k-danger", { role: "alert" });
  const title = revoked ? t("This key is no longer accepted") : t("This server requires a key");
  const why = revoked
    ? t("It was revoked, has expired, or is not one of this server. The page keeps what it shows.")
    : t("Keys are listed in agentsd.yaml under server.api_keys.");
  const onsubmit = async (/** @type {Event} */ event) => {
    event.preventDefault();
    const text = key.value.trim();
    problem.textContent = "";
    problem.textContent = await refusal(text);
    if (!problem.textContent) useKey(text, remember.checked);
  };
  const fields = [
    h("label.field", h("span.label", t("Key")), key),
    h("label.row", remember, t("Remember on this computer")),
  ];
  const box = h("div.in", h("h2.row.h15", icon("key"), title), h("p.sec", why), fields, problem);
  const go = h("button.btn.primary", { type: "submit" }, t("Continue"));
  const form = h("form", { onsubmit }, h("section", box, h("footer", go)));
  return openDialog(form, { label: title, kind: "narrow", stay: true, onClose: () => (closeLogin = null) });
}

/**
 * Return why the server refuses a key, or an empty text if it accepts it.
 * @param {string} key
 */
async function refusal(key) {
  if (!/^[\x21-\x7e]+$/.test(key)) return t("A key has letters, digits and punctuation only, without spaces.");
  const headers = { authorization: `Bearer ${key}` };
  const response = await fetch("/agent/me", { headers, cache: "no-store" }).catch(() => null);
  if (!response) return t("The server does not respond. Try again when it is back.");
  return response.status === 401 ? t("The server does not accept this key.") : "";
}

/** Show who is signed in, and what the key allows. */
export function showAccount() {
  const me = identity.value;
  if (!me) return;
  const title = t("Signed in as {name}", { name: me.user ?? me.name });
  const facts = {
    [t("Key")]: me.name,
    [t("User")]: me.user ?? t("any; each request names its user"),
    [t("Tenant")]: me.tenant ?? "–",
    [t("Roles")]: me.roles.join(", "),
    [t("Agents")]: me.agents?.join(", ") ?? t("all"),
    [t("Server")]: `agentsd ${me.server.version}`,
  };
  const list = h("dl.facts", Object.entries(facts).map(([name, value]) => [h("dt", name), h("dd", value)]));
  const out = apiKey.value ? h("button.btn", { onclick: signOut }, t("Sign out")) : null;
  const done = h("button.btn", { autofocus: true, onclick: () => close() }, t("Close"));
  const close = openDialog(h("section", h("div.in", h("h2.h15", title), list), h("footer", out, done)), {
    label: title,
    kind: "narrow",
  });
}

/** Forget the key, and start again without what was shown. */
export function signOut() {
  forgetKey();
  location.reload();
}
