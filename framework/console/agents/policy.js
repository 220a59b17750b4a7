/** What an agent may do: one row a tool, and one more for each condition on its arguments. */

import { fill, h } from "../core/dom.js";
import { t } from "../core/i18n.js";
import { icon } from "../core/icons.js";
import { place } from "../widgets/place.js";

/** @typedef {import("../types.d.ts").ToolPolicy} ToolPolicy */

const FIND = t("Find a tool");
/** Icon, colour and word. @type {Record<string, [string, string, string]>} */
const VERDICTS = {
  allow: ["check", "ok", t("allow")],
  ask: ["human", "human", t("ask")],
  deny: ["ban", "danger", t("deny")],
  none: ["x", "none", t("not offered")],
};
/** @type {Record<string, string>} */
const RISKS = { low: "", medium: ".k-info", high: ".k-warn", critical: ".k-danger" };

export class PolicyTable {
  #body = h("tbody");
  #find = h("input", { class: "input", type: "search", placeholder: FIND, "aria-label": FIND });
  #seg = h("div.seg");
  #notes = h("div");
  element = h("section.card.scrollx", h("header.pol-h", this.#find, this.#seg), this.#notes, h("table.table.pol",
    h("thead", h("tr", [t("Tool"), t("Risk"), t("Verdict"), t("Rule"), t("Place")].map((word) => h("th", word)))),
    this.#body));
  #verdict = "";
  /** @type {ToolPolicy[]} */
  #tools = [];

  constructor() {
    this.#find.addEventListener("input", () => this.#rows());
  }

  /** @param {import("../types.d.ts").AgentPolicy} policy */
  show({ tools, unavailable, not_contacted }) {
    this.#tools = tools.toSorted((a, b) => group(a) - group(b));
    fill(this.#notes, unavailable.map((name) => h("div.note.k-warn", icon("alert"), h("div", h("code", name), " ",
      not_contacted.includes(name) ? t("was not contacted: its tools are missing here.")
        : t("is unavailable: its tools are missing here.")))));
    this.#choose(this.#verdict);
  }

  /** @param {string} verdict */
  #choose(verdict) {
    this.#verdict = verdict;
    const choices = [["", t("All")], ...Object.entries(VERDICTS).map(([id, [, , word]]) => [id, word])];
    fill(this.#seg, choices.map(([id, word]) => {
      const props = { "aria-pressed": String(id === verdict), onclick: () => this.#choose(id) };
      return h("button", props, word, h("span.n", this.#tools.filter((tool) => hasVerdict(tool, id)).length));
    }));
    this.#rows();
  }

  #rows() {
    const text = this.#find.value.trim().toLowerCase();
    const named = this.#tools.filter(({ tool }) => tool.toLowerCase().includes(text));
    const found = named.filter((tool) => hasVerdict(tool, this.#verdict));
    fill(this.#body, found.length ? found.map(rows) : h("tr", h("td.dim", { colspan: 5 }, t("No tool matches."))));
  }
}

/**
 * Where a tool stands: those in every request, those that a run adds, those that are not offered.
 * @param {ToolPolicy} tool
 */
const group = ({ offered, deferred }) => (!offered ? 2 : deferred ? 1 : 0);

/** @param {ToolPolicy} tool @param {string} wanted */
function hasVerdict({ offered, verdict, conditions }, wanted) {
  if (!wanted || !offered) return !wanted || wanted === "none";
  return verdict === wanted || conditions.some((one) => one.verdict === wanted);
}

/** @param {ToolPolicy} tool */
function rows({ tool, offered, deferred, verdict, rule, reason, place: at, risk, conditions }) {
  const name = rule.replace(/^(allow|ask|deny) /, "");
  const lines = [
    ...conditions.map((one) => ({ ...one, text: [t("when"), " ", h("code", one.condition)] })),
    { verdict: offered ? verdict : "none", reason, place: at,
      text: [conditions.length ? `${t("otherwise")} ` : null, name === rule ? rule : h("code", name)] },
  ];
  return lines.map((line, i) => {
    const [mark, kind, word] = VERDICTS[line.verdict];
    return h("tr", { class: `${offered ? "" : "off"} ${i < conditions.length ? "cont" : ""}` },
      h("td", i ? h("span.sr", tool) : h("code", tool)),
      h("td", i ? null : h(`span.tag${RISKS[risk]}`, risk)),
      h("td", h(`span.status.k-${kind}`, icon(mark, { size: 14 }), word)),
      h("td.sec.rule", line.text, line.reason ? `: ${line.reason}` : null,
        !i && offered && deferred ? h("span.dim", ` · ${t("once a run needs it")}`) : null),
      h("td.cut", place(line.place)));
  });
}
