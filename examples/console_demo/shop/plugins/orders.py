"""The orders of the shop. Real ones would be in a database; these follow from their number."""

from __future__ import annotations

from typing_extensions import TypedDict

from agentsd import ToolError, tool

CUSTOMERS = ("Sam Okoro", "Tom Reyes", "Noor Haddad", "Ana Costa", "Ida Berg", "Wang Fang", "Paul Meier", "Lena Vogt")
ITEMS = (("Teapot, ash glaze", 89.0), ("Set of six bowls", 126.0), ("Mug, tall", 24.5), ("Vase, moss", 62.0))
STATES = ("delivered", "delivered", "delivered", "on its way", "packed")


class Order(TypedDict):
    """One order."""

    order: str
    customer: str
    item: str
    paid: float
    shipping: float
    state: str


@tool(risk="low", idempotent=True)
def find(order: str) -> Order:
    """Return an order with its customer, item, price and state.

    Args:
        order: the number of the order, such as 20417.
    """
    if not order.isdigit() or not 20000 <= int(order) < 30000:
        raise ToolError(f"there is no order {order!r}: numbers are 20000 to 29999")
    number = int(order)
    item, price = ITEMS[number % len(ITEMS)]
    return {
        "order": order,
        "customer": CUSTOMERS[number % len(CUSTOMERS)],
        "item": item,
        "paid": price,
        "shipping": 7.5,
        "state": STATES[number % len(STATES)],
    }


@tool(risk="low", idempotent=True)
def late(week: int) -> list[dict[str, object]]:
    """Return the orders of a week that were delivered late.

    Args:
        week: the number of the week, 1 to 53.
    """
    if not 1 <= week <= 53:
        raise ToolError(f"there is no week {week}: weeks are 1 to 53")
    return [{"order": str(20400 + week + 3 * i), "days": i + 1, "carrier": "Nordpost"} for i in range(3)]


@tool(risk="high")
def refund(order: str, amount: float, reason: str) -> str:
    """Pay an amount back to the customer of an order.

    Args:
        order: the number of the order.
        amount: the amount in euros, more than 0.
        reason: why, in a few words; the customer reads it.
    """
    if amount <= 0:
        raise ToolError(f"the amount must be more than 0: {amount}")
    return f"refunded {amount:.2f} euros for order {order}: {reason}"


@tool(risk="medium", idempotent=True)
def note(order: str, text: str) -> str:
    """Add a note to an order, for the staff.

    Args:
        order: the number of the order.
        text: the note.
    """
    return f"noted at order {order}: {text}"


@tool(risk="high")
def delete_label(order: str) -> str:
    """Delete the shipping label of an order.

    Args:
        order: the number of the order.
    """
    return f"deleted the label of order {order}"
