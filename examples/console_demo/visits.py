"""Who asks what in the two weeks, and when."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from random import Random

from examples.console_demo.shop.plugins.orders import CUSTOMERS, ITEMS, STATES
from framework.types.state import Approve, Decision, Edit, Reject

_DAYS = 14
_TRUSTED = 100
"""Price of an item up to which colleagues approve every refund: a rule can be learned from that."""
_OFFICE_HOURS = (1, 0, 0, 0, 0, 1, 2, 5, 9, 12, 11, 9, 6, 10, 12, 11, 8, 6, 4, 3, 3, 2, 2, 1)
"""How many runs begin in each hour of a day, relative to each other."""


@dataclass(frozen=True, slots=True)
class Visit:
    """A person who asks something, once or several times in one conversation."""

    begins: datetime
    user: str
    messages: tuple[str, ...]
    agent: str | None = None
    decision: Decision | None = None
    """What a colleague decides if the run asks; None leaves it waiting."""
    cancelled: bool = False


_USERS = ("ann", "ann", "ben", "cleo", "cleo", "dan", "wei")


def visits(now: datetime, count: int, seed: int = 19) -> list[Visit]:
    """Return the visits of two weeks before `now`, oldest first. The last ones wait; one has waited for too long."""
    random = Random(seed)
    found = [_visit(random, now) for _ in range(count)]

    def minutes(number: int) -> datetime:
        return now - timedelta(minutes=number)

    found += [
        Visit(minutes(188), "ben", ("Write the report of week 74",), None, Approve()),
        Visit(minutes(161), "wei", ("退货政策是什么？",)),
        Visit(minutes(94), "ben", ("Reconcile all refunds of October with the ledger",), "support"),
        Visit(minutes(77), "cleo", ("Compare the carriers of the order parcels to Norway",), "support"),
        Visit(minutes(70), "cleo", ("Lena Vogt writes that order 20431 arrived broken. Refund it and write to her.",)),
        Visit(minutes(58), "dan", ("Checkout got slow at half past one. What do the logs say?",)),
        Visit(minutes(8), "ann", ("Which address of Ida Berg is right for her order?",)),
        Visit(minutes(26), "ben", ("Write the report of week 47",)),
        Visit(minutes(4), "ann", ("Ida Berg writes that order 20420 arrived broken. Refund it and write to her.",)),
    ]
    return sorted(found, key=lambda visit: visit.begins)


def _visit(random: Random, now: datetime) -> Visit:
    begins = _moment(random, now)
    number, user = random.randint(20100, 20994), random.choice(_USERS)
    item = random.choice(("teapot", "mug", "vase", "bowl", "kiln"))
    while STATES[number % len(STATES)] != "delivered":
        number += 1
    order, name = str(number), CUSTOMERS[number % len(CUSTOMERS)]
    bought = ITEMS[number % len(ITEMS)][0].partition(",")[0].lower()
    broken = f"{name} writes that order {order} arrived broken. Refund it and write back."
    decision: Decision = random.choice(
        (
            Approve(),
            Approve(),
            Edit(arguments={"order": order, "amount": 60.0, "reason": "arrived broken, without shipping"}),
            Reject(reason="the photo shows an old crack"),
        )
    )
    kinds: list[tuple[int, tuple[str, ...], str | None]] = [
        (30, (f"Where is order {random.randint(20100, 20999)}?",), None),
        (14, (f"Where is order {order}?", "And what is the return policy?"), None),
        (12, (broken,), None),
        (10, (f"There is a chip in the {bought} of order {order}. Can we pay 12 euros back?",), None),
        (9, (f"How many {item}s are in stock?",), "stock"),
        (7, ("退货政策是什么？", f"订单 {order} 可以退款吗？"), "support"),
        (6, (f"Write the report of week {random.choice((44, 45, 46, 46, 74))}",), None),
        (6, ("What is the average of 24.5, 62, 89 and 126?",), "assistant"),
        (5, ("Checkout is slow again. What do the logs say?",), None),
        (4, (f"Delete the label of order {order}",), None),
        (4, (f"Write to {name} that the parcel of order {order} leaves tomorrow",), "writer"),
        (3, ("Compare the carriers of the order parcels to Norway",), "support"),
        (3, ("Show me the margins of the last orders",), "support"),
        (2, ("Reconcile all refunds of October with the ledger",), "support"),
    ]
    _, messages, agent = random.choices(kinds, [weight for weight, *_ in kinds])[0]
    paid = ITEMS[number % len(ITEMS)][1]
    answer: Decision = decision if messages[0] == broken and paid > _TRUSTED else Approve()
    return Visit(begins, user, messages, agent, answer, cancelled=random.random() < 0.01)


def _moment(random: Random, now: datetime) -> datetime:
    """Return a moment of the two weeks before: more on working days, in office hours, and every week a few more."""
    while True:
        day = now - timedelta(days=random.triangular(0, _DAYS, 3))
        hour = random.choices(range(24), _OFFICE_HOURS)[0]
        moment = day.replace(hour=hour, minute=random.randrange(60), second=random.randrange(60))
        if moment < now - timedelta(hours=3) and (moment.weekday() < 5 or random.random() < 0.35):
            return moment
