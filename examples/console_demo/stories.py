"""What people ask in the shop, and what the model answers: each story is a pattern and the model's turns.

The turn is chosen by the number of replies since the user's message, so the same request always gets the same reply.
What a reply states is from the results of the tools that were called before it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import Any

from framework.llm.client import ModelRequest
from framework.testing import calls
from framework.types.errors import ModelError
from framework.types.messages import Message, Reasoning

Reply = Message | ModelError
Results = Sequence[Any]
"""What the tools have returned since the user's message: the value of JSON, else the text."""
Turns = Callable[[re.Match[str], Results], Sequence[Reply]]
"""The model's turns for a message that matches a pattern."""
_HELP = """\
This is a demo: the model replies from a script. Try one of these:

- *Where is order 20417?*
- *Ida Berg writes that order 20420 arrived broken. Refund it and write to her.*
- *Write the report of week 47.*
- *Checkout got slow at half past one. What do the logs say?*
- *How many teapots are in stock?*
- *退货政策是什么？*"""
_RETURNS = """\
Goods can come back **within 30 days**, unused and in their box. What arrives broken is refunded in full, shipping \
included: a photo is enough.

| Case | What we do |
|---|---|
| arrived broken | refund, the customer keeps the pieces |
| changed their mind | refund after the return |
| made-to-order glaze | no return |

This is from `help/returns.md`."""
_RETURNS_ZH = """\
收货后 **30 天内**可以退货，商品须未使用并保留原包装。

- 收到时已破损：全额退款，包括运费，拍照即可
- 定制釉色：不接受退货

来源：`help/returns.md`。"""
_SLOW = """\
Checkout was slow from **13:31 to 13:44**. The payment provider did not answer in time:

```text
2026-11-23 13:33:55 ERROR payments: the provider did not answer within 3 s, retrying (attempt 2)
```

Before and after, an order takes 60 to 180 ms; in between it takes up to 4.2 s. No order was lost, because each one \
was retried."""


def reply_to(request: ModelRequest) -> Reply:
    """Return the model's reply: the next turn of the first story that matches the user's message."""
    asked = max(at for at, message in enumerate(request.messages) if message.role == "user")
    while asked and not any(pattern.search(request.messages[asked].content) for pattern, _ in _STORIES):
        asked = next((at for at in range(asked - 1, -1, -1) if request.messages[at].role == "user"), 0)
    text = request.messages[asked].content
    since = request.messages[asked + 1 :]
    done = sum(message.role == "assistant" for message in since)
    results = [_value(message.content) for message in since if message.role == "tool"]
    if request.output is not None:
        return _plan(text, request)
    for pattern, turns in _STORIES:
        if match := pattern.search(text):
            replies = turns if isinstance(turns, tuple) else turns(match, results)
            return replies[min(done, len(replies) - 1)]
    return _say(_HELP)


def _say(text: str, thought: str = "") -> Message:
    return Message(role="assistant", content=text, reasoning=Reasoning(text=thought) if thought else None)


def _call(*tools: tuple[str, dict[str, Any]], text: str = "", thought: str = "", turn: int = 1) -> Message:
    asked = calls(*tools, prefix=f"call_{turn}")
    reasoning = Reasoning(text=thought) if thought else None
    return Message(role="assistant", content=text, tool_calls=asked, reasoning=reasoning)


def _value(text: str) -> Any:
    """Return the value of JSON, or the text if it is none."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def _last(results: Results, begin: str) -> str:
    """Return the last result that is a text with this beginning, or an empty one."""
    return next((text for text in reversed(results) if isinstance(text, str) and text.startswith(begin)), "")


def _order(results: Results) -> dict[str, Any]:
    """Return the order that was looked up, or an empty one before that."""
    empty = {"customer": "", "item": "", "paid": 0.0, "shipping": 0.0, "state": ""}
    return next((found for found in results if isinstance(found, dict) and "customer" in found), empty)


def _where(match: re.Match[str], results: Results) -> Sequence[Reply]:
    number, order = match["order"], _order(results)
    state = {"packed": "is packed and leaves the workshop next", "delivered": "was delivered"}.get(order["state"])
    return (
        _call(("orders.find", {"order": number})),
        _say(f"Order {number} ({order['item']}, for {order['customer']}) {state or 'is on its way'}."),
    )


def _small_refund(match: re.Match[str], results: Results) -> Sequence[Reply]:
    order, amount = match["order"], float(match["amount"])
    return (
        _call(("orders.find", {"order": order}), ("docs.search", {"query": "broken refunded"})),
        _call(("orders.refund", {"order": order, "amount": amount, "reason": "a chip in the glaze"}), turn=2),
        _say(f"Done: {_last(results, 'refunded')}. Amounts up to €50 need no approval."),
    )


def _broken(match: re.Match[str], results: Results) -> Sequence[Reply]:
    order, name = match["order"], match["name"].strip()
    paid = _order(results)["paid"] + _order(results)["shipping"]
    refunded, refused = _last(results, "refunded"), _last(results, "Cancelled").rpartition(": ")[2]
    letter = f"Write to {name}: order {order} is refunded in full, and the pieces can be kept."
    refund = {"order": order, "amount": paid, "reason": "arrived broken, shipping included"}
    return (
        _call(
            ("orders.find", {"order": order}),
            ("docs.search", {"query": "broken refunded"}),
            thought=f"{name} wants the money back. I need the price of order {order}, and what we promise for goods "
            "that arrive broken. Both can be looked up at the same time.",
        ),
        _call(
            ("agent.writer", {"message": letter}),
            ("orders.refund", refund),
            text="The order is found, and the help page allows a full refund. I draft the reply and ask for the money.",
            turn=2,
        ),
        _say(
            f"I {refunded.partition(':')[0]}. The reply to {name}:\n\n"
            f"> Hello {name.split()[0]}, I am sorry that your parcel arrived broken. The money is on its way. "
            "Please keep the pieces, some people make mosaics of them."
            if refunded
            else f"Order {order} is not refunded: {refused}. I did not send the reply to {name}."
        ),
    )


def _letter(match: re.Match[str], _: Results) -> Sequence[Reply]:
    name = match["name"].strip().split()[0]
    if "leaves tomorrow" in match.string:
        return (_say(f"Hello {name}, your parcel is packed and leaves our workshop tomorrow. Enjoy your pottery!"),)
    return (
        _say(
            f"Hello {name}, I am sorry that your parcel arrived broken. We have refunded the full price, shipping "
            "included; the money is usually there within three days. Please keep the pieces."
        ),
    )


def _account(match: re.Match[str], results: Results) -> Sequence[Reply]:
    name, chosen = match["name"], results[-1] if results else ""
    question = f"There are two customers called {name}. Which one is meant?"
    choices = [f"{name}, Bergen (4 orders)", f"{name}, Kiel (1 order)"]
    return (
        _call(("ask_user", {"question": question, "choices": choices})),
        _say(f"Noted: the address of {chosen} is right for the order."),
    )


def _label(match: re.Match[str], _: Results) -> Sequence[Reply]:
    order = match["order"]
    return (
        _call(("orders.delete_label", {"order": order})),
        _call(("orders.note", {"order": order, "text": "label to be deleted in the back office"}), turn=2),
        _say(f"I may not delete labels. I left a note at order {order}, so that the back office does it."),
    )


def _stock(match: re.Match[str], results: Results) -> Sequence[Reply]:
    item = match["item"].lower()
    level = next((found for found in results if isinstance(found, dict) and "pieces" in found), None)
    answer = (
        f"There are {level['pieces']} {item}s in stock."
        if level
        else f"I do not know: {_last(results, 'Error').removeprefix('Error: ').strip()}."
    )
    return _call(("stock.level", {"item": item})), _say(answer)


def _average(match: re.Match[str], results: Results) -> Sequence[Reply]:
    numbers = match["numbers"].replace(" and ", ", ")
    return (
        _call(("calculator", {"expression": f"mean([{numbers}])"})),
        _say(f"The average basket is €{results[-1] if results else 0:.2f}."),
    )


def _report(match: re.Match[str], results: Results) -> Sequence[Reply]:
    week, written = match["week"], _last(results, "wrote").rpartition(" ")[2]
    late = next((found for found in results if isinstance(found, list) and found and "days" in found[0]), [])
    carriers = " and ".join(sorted({order["carrier"] for order in late}))
    missing = "" if f"week-{week}" in written else f"There is no week {week}, so I took the present one. "
    return (_say(f"{missing}The report is in `{written}`. {len(late)} orders were late, all by {carriers}."),)


def _plan(text: str, request: ModelRequest) -> Message:
    """Return a plan. A week that does not exist makes its first step fail, so that it is revised."""
    match = re.search(r"week (\d+)", text)
    is_revision = any("there is no week" in message.content for message in request.messages)
    week = 47 if is_revision or match is None else int(match[1])
    report = f"# Week {week}\n\nLate: {{{{ steps.late.output }}}}\n\nWe promise: {{{{ steps.promise.output }}}}\n"
    promise = {"id": "promise", "description": "Look up what we promise", "tool": "docs.search"}
    save = {"id": "save", "description": "Save the report", "tool": "reports.write"}
    steps: list[dict[str, Any]] = [
        {"id": "late", "description": f"List the late orders of week {week}", "tool": "orders.late"},
        {**promise, "parameters": {"query": "parcel days"}},
        {**save, "parameters": {"name": f"week-{week}.md", "text": report}, "depends_on": ["late", "promise"]},
    ]
    steps[0]["parameters"] = {"week": week}
    return _say(json.dumps({"goal": f"Report the late orders of week {week}", "steps": steps}))


_LOG = "data/logs/shop.log"
_FIXED: tuple[tuple[str, tuple[Reply, ...]], ...] = (
    (r"reconcile", tuple(_call(("orders.find", {"order": str(20300 + 7 * n)}), turn=n) for n in range(1, 30))),
    (r"carriers", (ModelError("the model server answered 503: the queue is full; try again later"),)),
    (
        r"logs?\b.*say|checkout",
        (
            _call(
                ("log_transform", {"path": _LOG, "operation": "summary"}),
                thought="The log of the shop should show it. A summary first, then the lines around the change.",
            ),
            _call(("log_transform", {"path": _LOG, "operation": "grep", "pattern": "ERROR", "limit": 5}), turn=2),
            _say(_SLOW),
        ),
    ),
    (
        r"margins",
        (_call(("docs.read", {"path": "help/internal/margins.md"})), _say("That page is for the staff only.")),
    ),
    (r"退货|退款", (_call(("docs.read", {"path": "help/returns.md"})), _say(_RETURNS_ZH))),
    (r"return", (_call(("docs.read", {"path": "help/returns.md"})), _say(_RETURNS))),
    (r"^(thanks|thank you|ok|bye|谢谢)", (_say("You are welcome."),)),
)
_BY_MATCH: tuple[tuple[str, Turns], ...] = (
    (r"(?P<name>[A-Z]\w+ [A-Z]\w+) writes that order (?P<order>\d+) arrived broken", _broken),
    (r"write to (?P<name>[A-Z]\w+ [A-Z]\w+)", _letter),
    (r"chip.*order (?P<order>\d+).*?(?P<amount>\d+) euros", _small_refund),
    (r"delete the label of order (?P<order>\d+)", _label),
    (r"address of (?P<name>[A-Z]\w+ [A-Z]\w+)", _account),
    (r"where is order (?P<order>\d+)", _where),
    (r"report of week (?P<week>\d+)", _report),
    (r"how many (?P<item>[a-z]+?)s?\b.*stock", _stock),
    (r"average of (?P<numbers>[\d., and]+\d)", _average),
)
_ALL: tuple[tuple[str, Turns | tuple[Reply, ...]], ...] = (*_BY_MATCH, *_FIXED)
_STORIES = tuple((re.compile(pattern, re.IGNORECASE), turns) for pattern, turns in _ALL)
