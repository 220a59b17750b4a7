"""Cost of loading a plugin and of leasing a generation, and the memory left by many reloads."""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

from benchmarks.harness import Row, Table, best, resident_mb
from framework.config.agents.toolbox import PluginCache
from framework.config.generations.catalog import Catalog
from framework.tools.plugins import PLUGIN_PACKAGE, PluginLifecycle, PluginLoader

PLUGIN = b"""
from __future__ import annotations
import logging
from dataclasses import dataclass
from functools import lru_cache
from pydantic import BaseModel
from framework import tool
from ._money import Money

log = logging.getLogger("plugins.orders")
opened = []

async def setup(context):
    opened.append([context.plugin] * 1000)

def teardown(context):
    opened.clear()

class Item(BaseModel):
    name: str
    price: Money

class Order(BaseModel):
    items: list[Item]

@dataclass
class Size:
    width: int

@lru_cache
def tax(n: int) -> int:
    return n * VERSION

@tool
def total(order: Order) -> int:
    "Add up an order."
    return tax(sum(item.price.cents for item in order.items))

@tool
def fits(size: Size, order: Order | None = None) -> bool:
    "Does it fit?"
    log.debug("trying")
    return size.width < VERSION

@tool
def find(text: str, limit: int = 10) -> str:
    "Find an order."
    return text[:limit]
"""
HELPER = b"from pydantic import BaseModel\n\nclass Money(BaseModel):\n    cents: int\n"
PLAIN = b"def f() -> int:\n    return 1\n"
WARM_UP = 22
"""Reloads after which the history and the thread pools are full."""
NO_LEASE = nullcontext()
ORDERS, MONEY = "plugins/orders.py", "plugins/_money.py"


def version(number: int) -> dict[str, bytes]:
    """Return version `number` of a plugin with Pydantic models, a dataclass, a cache, three tools and a helper."""
    return {ORDERS: PLUGIN + b"\nVERSION = %d\n" % number, MONEY: HELPER}


def loading(rounds: int) -> Table:
    """Measure the cost of a load, compared with executing the source directly."""
    loader, files = PluginLoader(), version(1)
    direct = best(lambda: exec(compile(PLAIN, "plain", "exec"), {}), rounds=rounds)
    plain = best(lambda: loader.load("plugins/plain.py", PLAIN), rounds=rounds)
    full = best(lambda: loader.load(ORDERS, files[ORDERS], files), rounds=rounds)
    cache = PluginCache([])
    unchanged = best(lambda: cache.toolbox(files, {}), rounds=rounds)
    rows = [
        Row("compile and exec of one function", direct, 1.0),
        Row("the same as a plugin", plain, plain / direct, "a module, a thread with a deadline"),
        Row("3 tools, 3 models, a helper", full, full / direct, "mostly pydantic"),
        Row("the same, unchanged", unchanged, unchanged / direct, "in a reload of other files"),
    ]
    return Table("Loading a plugin", "µs", rows)


AGENT = """\
version: 1
name: clerk
description: Knows the orders.
model: offline
instructions: Answer briefly.
skill_policy: {allow: ["orders.*"]}
"""


async def reloading(root: Path, times: int) -> Table:
    """Measure the cost of a lease, and what `times` reloads with setup and teardown leave in memory."""
    for folder in ("agents.d", "plugins"):
        (root / folder).mkdir()
    (root / "agents.d/clerk.yaml").write_text(AGENT, "utf-8")
    lifecycle = PluginLifecycle()
    catalog = Catalog(root, tools=(), executors=["react"], models=["offline"], lifecycle=lifecycle)

    async def reload(number: int) -> None:
        for path, source in version(number).items():
            await asyncio.to_thread((root / path).write_bytes, source)
        generation = await catalog.reload()
        assert not generation.errors
        assert "orders.total" in generation.agents["clerk"].toolset.offered

    for number in range(WARM_UP):
        await reload(number)
    gc.collect()
    before, threads = resident_mb(), threading.active_count()
    started = perf_counter()
    for number in range(WARM_UP, WARM_UP + times):
        await reload(number)
    elapsed = (perf_counter() - started) / times * 1e3
    gc.collect()
    grown, more = resident_mb() - before, threading.active_count() - threads
    remaining = len({name.partition(".")[0] for name in sys.modules if name.startswith(PLUGIN_PACKAGE)})

    def lease() -> None:
        with catalog.lease():
            pass

    def null() -> None:
        with NO_LEASE:
            pass

    null_time, lease_time = best(null, rounds=7), best(lease, rounds=7)
    rows = [
        Row("`with nullcontext()`", null_time, 1.0),
        Row("acquire and release a lease", lease_time, lease_time / null_time, "target: about 1 µs"),
    ]
    left = (
        f"{times} reloads of a plugin file, {elapsed:.1f} ms each: memory {grown:+.1f} MB (target: under 3), "
        f"{remaining} loads in memory ({len(catalog.history)} generations kept), {more} more threads"
    )
    await catalog.close()
    return Table("Leasing a generation for a run", "µs", rows, left)


def tables(*, quick: bool) -> Iterator[Table]:
    """Measure loads, then leases and what reloads leave."""
    yield loading(rounds=3 if quick else 7)
    with TemporaryDirectory() as folder:
        yield asyncio.run(reloading(Path(folder), 10 if quick else 15))
