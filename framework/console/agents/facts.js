/** The settings of an agent. */

import { h } from "../core/dom.js";
import { cost, duration, tokens } from "../core/format.js";
import { t } from "../core/i18n.js";
import { link } from "../core/route.js";
import { place } from "../widgets/place.js";
import { terms } from "../widgets/text.js";

/** @typedef {import("../types.d.ts").AgentDetail} AgentDetail */
/** @typedef {Record<string, any>} Values */

/** @param {AgentDetail} detail */
export function facts(detail) {
  const { policy, places, file_keys, fallback_models, model_settings, plan, sub_agents, handoffs, routing } = detail;
  const { confirm, ...limits } = policy.limits;
  /** @param {string} section */
  const keys = (section) => (/** @type {string} */ name) => file_keys[`${section}.${name}`] ?? name;
  const approval = plan.approval?.from ?? plan.approval;
  const { steps, ...settings } = plan;
  for (const [name, value] of Object.entries(confirm)) limits[`confirm.${name}`] = value;
  const budgets = policy.budgets.map(({ name, limits, places }) =>
    h("p", h("code", name), " ", limits ?? t("not defined"), places.map((one) => [" ", place(one)])));
  const hooks = Object.entries(policy.hooks).map(([at, names]) => h("p", h("code", at), ` ${names.join(", ")}`));
  const links = (/** @type {string[]} */ names) =>
    names.length ? h("p.row.wrap", names.map((name) => h("a.lk", { href: link("agents", name) }, name))) : null;
  const model = { model: policy.model, fallback_models, mode: policy.executor, ...model_settings };
  return h("div.stack",
    card(t("Model"), places.model, list(model)),
    card(t("Limits"), places.runtime_policy,
      list(limits, (name) => places[`runtime_policy.${name}`], keys("runtime_policy"))),
    card(t("When this agent is chosen"), places.routing, chosen(routing)),
    policy.executor === "react" ? null : card(t("Plan"), places.plan,
      list({ ...settings, approval }, undefined, (name) => keys("plan")(name).replace("plan.", ""))),
    steps.length ? card(t("Steps of the plan"), places["plan.steps"], h("ol.flat", steps.map(fixedStep))) : null,
    card(t("Shared budgets"), places.budgets, budgets),
    card(t("Skills"), places.skills, skills(policy.skills)),
    card(t("Hooks"), places.hooks, hooks),
    card(t("Sub-agents"), places.sub_agents, links(sub_agents)),
    card(t("Hands over to"), places.handoffs, links(handoffs)));
}

/** @param {any} step a step of the plan in the agent's file */
function fixedStep(step) {
  const what = step.tool ?? (step.agent ? `agent.${step.agent}` : "");
  const about = step.goal ?? step.description ?? step.message ?? "";
  const text = [h("b", step.id), " ", what && h("code", what), " ", about];
  return h("li", text, terms(step).map((term) => h("div.dim.small", term)));
}

/** The skills that the agent may use, and the names of the others. @param {AgentDetail["policy"]["skills"]} every */
function skills(every) {
  const own = every.filter(({ use }) => use !== "deny");
  const denied = every.filter(({ use }) => use === "deny");
  return [
    ...own.map((skill) => h("div.stack", h("p.row.wrap", h("code", skill.name), place(`${skill.path}:1`),
      h("span.dim.small",
        t("{tokens} tokens, {files} other files", { tokens: tokens(skill.tokens), files: skill.files })),
      skill.use === "preload" ? h("span.dim.small", t("in the system prompt")) : null),
    h("p.small", skill.description),
    skill.asks_for.length
      ? h("p.small.dim", t("It asks for {tools}, which permits nothing.", { tools: skill.asks_for.join(", ") }))
      : null)),
    ...denied.map(({ name, rule, place: at, reason }) => h("p.row.wrap", h("code", name),
      h("span.dim.small", t("denied"), ` ${rule}${reason && `: ${reason}`}`), at === "default" ? null : place(at))),
  ];
}

/** @param {AgentDetail["routing"]} routing */
function chosen({ is_default, model, priority, ...rules }) {
  const hasRules = Object.values(rules).some((rule) => rule.length);
  return h("div.stack", h("p.small", [
    hasRules ? t("A message matches these rules, and no agent with a higher priority.") : null,
    model && t("The model {model} chooses it.", { model }),
    is_default ? t("Nothing else chooses an agent: it is the default.") : null,
    hasRules || model || is_default ? null : t("A request names it."),
  ].filter(Boolean).join(" ")), hasRules ? list({ priority, ...rules }) : null);
}

/**
 * @param {Values} values
 * @param {(name: string) => string | undefined} [at] the places of keys, if those matter
 * @param {(name: string) => string} [key] the key in a file
 */
function list(values, at = () => "-", key = (name) => name) {
  const rows = Object.entries(values).filter(([, value]) => !Array.isArray(value) || value.length);
  return h("dl.limits", rows.map(([name, value]) => h("div", h("dt", h("code", key(name))),
    h("dd.num", shown(name, value), at(name) ? null : h("span.dim", ` ${t("default")}`)))));
}

/** @param {string} title @param {string | undefined} at @param {any} content */
function card(title, at, content) {
  if (!content || content.length === 0) return null;
  const where = at && h("span.cut", place(at));
  return h("section.card", h("header", h("h2.nw", title), h("span.grow"), where), h("div.in", content));
}

/** @param {string} name @param {any} value */
function shown(name, value) {
  if (value === null || value === undefined) return t("none");
  if (/timeout$|expires$/.test(name)) return duration(value * 1000);
  if (name === "max_cost_usd") return cost(value);
  if (Array.isArray(value)) return value.join(", ");
  if (typeof value === "object") return Object.entries(value).map((pair) => pair.join(": ")).join(", ");
  return typeof value === "number" ? tokens(value) : String(value);
}
