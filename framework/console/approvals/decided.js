/** One decision that was made. */

import { h } from "../core/dom.js";
import { t } from "../core/i18n.js";
import { argumentList } from "../widgets/approval-body.js";
import { before, decidedText } from "../widgets/approval-record.js";
import { outcomeLine, reasons } from "../widgets/approval-view.js";
import { diffView } from "../widgets/diff.js";
import { jsonBlock } from "../widgets/json.js";
import { statusLabel } from "../widgets/status.js";
import { madeOf } from "./items.js";

/** @param {import("../types.d.ts").DecidedConfirmation} made */
export function decidedDetail(made) {
  const { confirmation: asked, decision } = made;
  const pretty = (/** @type {any} */ value) => JSON.stringify(value, null, 2);
  const line = outcomeLine(asked, decidedText(madeOf(made), asked));
  const edit = decision.type === "edit" && diffView(pretty(before(asked)), pretty(decision.arguments));
  const changed = edit && h("div.stack-d", h("p.label", t("The changes")), edit);
  const shown = asked?.plan ? jsonBlock(before(asked)) : argumentList(asked?.arguments ?? {});
  return h(
    "section.card",
    h("header", h("h2", t("What was decided")), h("span.grow"), statusLabel(made.status)),
    h("div.in.stack", line, asked ? [reasons(asked), changed || shown] : t("What was asked is not stored.")),
  );
}
