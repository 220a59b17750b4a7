"""What people ask in the shop, and what the model answers: each story is a pattern and the model's turns.

The turn is chosen by the number of replies since the user's message, so the same request always gets the same reply.
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
Turns = Callable[[re.Match[str]], Sequence[Reply]]
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

This is from `returns.md`."""
_RETURNS_ZH = """\
收货后 **30 天内**可以退货，商品须未使用并保留原包装。

- 收到时已破损：全额退款，包括运费，拍照即可
- 定制釉色：不接受退货

来源：`returns.md`。"""
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
    done = sum(message.role == "assistant" for message in request.messages[asked + 1 :])
    if request.output is not None:
        return _plan(text, request)
    for pattern, turns in _STORIES:
        if match := pattern.search(text):
            replies = turns if isinstance(turns, tuple) else turns(match)
            return replies[min(done, len(replies) - 1)]
    return _say(_HELP)


def _say(text: str, thought: str = "") -> Message:
    return Message(role="assistant", content=text, reasoning=Reasoning(text=thought) if thought else None)


def _call(*tools: tuple[str, dict[str, Any]], text: str = "", thought: str = "", turn: int = 1) -> Message:
    asked = calls(*tools, prefix=f"call_{turn}")
    reasoning = Reasoning(text=thought) if thought else None
    return Message(role="assistant", content=text, tool_calls=asked, reasoning=reasoning)


def _where(match: re.Match[str]) -> Sequence[Reply]:
    order = match["order"]
    return (
        _call(("orders.find", {"order": order})),
        _say(f"Order {order} left the workshop, and the carrier scanned it this morning. It needs one more day."),
    )


def _small_refund(match: re.Match[str]) -> Sequence[Reply]:
    order, amount = match["order"], float(match["amount"])
    return (
        _call(("orders.find", {"order": order}), ("docs.search", {"query": "broken refunded"})),
        _call(("orders.refund", {"order": order, "amount": amount, "reason": "a chip in the glaze"}), turn=2),
        _say(f"I refunded €{amount:.2f} of order {order}. Amounts up to €50 need no approval."),
    )


def _broken(match: re.Match[str]) -> Sequence[Reply]:
    order, name = match["order"], match["name"].strip()
    paid = (89.0, 126.0, 24.5, 62.0)[int(order) % 4] + 7.5
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
            f"The refund for order {order} is on its way, shipping included (`returns.md`). The reply to {name}:\n\n"
            f"> Hello {name.split()[0]}, I am sorry that your parcel arrived broken. We have refunded the full price. "
            "Please keep the pieces, some people make mosaics of them."
        ),
    )


def _letter(match: re.Match[str]) -> Sequence[Reply]:
    name = match["name"].strip().split()[0]
    return (
        _say(
            f"Hello {name}, I am sorry that your parcel arrived broken. We have refunded the full price, shipping "
            "included; the money is usually there within three days. Please keep the pieces."
        ),
    )


def _account(match: re.Match[str]) -> Sequence[Reply]:
    name = match["name"]
    question = f"There are two customers called {name}. Which one is meant?"
    choices = [f"{name}, Bergen (4 orders)", f"{name}, Kiel (1 order)"]
    return (
        _call(("ask_user", {"question": question, "choices": choices})),
        _say(f"Noted: the address of {name} is the one you chose."),
    )


def _label(match: re.Match[str]) -> Sequence[Reply]:
    order = match["order"]
    return (
        _call(("orders.delete_label", {"order": order})),
        _call(("orders.note", {"order": order, "text": "label to be deleted in the back office"}), turn=2),
        _say(f"I may not delete labels. I left a note at order {order}, so that the back office does it."),
    )


def _stock(match: re.Match[str]) -> Sequence[Reply]:
    item = match["item"].lower()
    known = {"teapot": "19 teapots", "mug": "342 mugs", "vase": "6 vases", "bowl": "128 bowls"}
    answer = f"There are {known[item]} in stock." if item in known else f"The warehouse did not say how many {item}s."
    return _call(("stock.level", {"item": item})), _say(answer)


def _average(match: re.Match[str]) -> Sequence[Reply]:
    numbers = match["numbers"].replace(" and ", ", ")
    return (
        _call(("calculator", {"expression": f"mean([{numbers}])"})),
        _say("I calculated it: the average basket is the number above."),
    )


def _report(match: re.Match[str]) -> Sequence[Reply]:
    week = match["week"]
    return (_say(f"The report of week {week} is in the folder `reports`. Three orders were late, all by Nordpost."),)


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
    (r"margins", (_call(("docs.read", {"path": "internal/margins.md"})), _say("That page is for the staff only."))),
    (r"退货|退款", (_call(("docs.read", {"path": "returns.md"})), _say(_RETURNS_ZH))),
    (r"return", (_call(("docs.read", {"path": "returns.md"})), _say(_RETURNS))),
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
