"""Imports that keep the garbage collector away from the objects they create."""

from __future__ import annotations

import gc
import sys
from importlib import import_module
from types import ModuleType


def import_uncollected(name: str) -> ModuleType:
    """Import a module without garbage collections; afterwards only full ones traverse the objects of the process.

    Modules live as long as the process, but the collector traverses them again and again while more are imported: a
    tenth of the time. A collector that is off stays off, and frozen objects stay frozen. A module that is imported
    already is only returned: the collector's counters start again, and may not do so with each call.
    """
    if name in sys.modules or not gc.isenabled():
        return import_module(name)
    gc.disable()
    try:
        return import_module(name)
    finally:
        if not gc.get_freeze_count():
            gc.freeze()
            gc.unfreeze()  # all objects are in the oldest generation now, without a collection
        gc.enable()


def freeze_modules() -> None:
    """Exclude the objects of the process from garbage collections, also from those at its end; once a process.

    Call it after the imports of a command, before it opens anything: a frozen object is never collected.
    """
    if not gc.get_freeze_count():
        gc.freeze()
