"""The package `framework` under the product's name: `agentsd.x` and `framework.x` are the same module object.

The package beside this one is taken even if another folder called `framework` comes first in `sys.path`, as the one
beside a user's `app.py` does.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from framework import *  # noqa: F403  # type checkers read the public names here


class _SameModules(MetaPathFinder, Loader):
    """Finds `framework.x` for `agentsd.x`."""

    def find_spec(self, fullname: str, *_: Sequence[str] | ModuleType | None) -> ModuleSpec | None:
        is_ours = fullname.startswith("agentsd.") and fullname != "agentsd.__main__"
        return ModuleSpec(fullname, self) if is_ours else None

    def exec_module(self, module: ModuleType) -> None:
        sys.modules[module.__name__] = import_module("framework." + module.__name__.removeprefix("agentsd."))


def _framework() -> ModuleType:
    home = Path(__file__).resolve().parent.parent / "framework"
    loaded = sys.modules.get("framework")
    if loaded is not None:
        if Path(loaded.__file__ or "").resolve().parent == home:
            return loaded
        raise ImportError(
            f"another package called 'framework' is imported already: {loaded.__file__}; agentsd needs that name for "
            "its own: rename the other package, or use agentsd in a process of its own"
        )
    spec = spec_from_file_location("framework", home / "__init__.py", submodule_search_locations=[str(home)])
    if spec is None or spec.loader is None:
        raise ImportError(f"the package 'framework' of agentsd is missing: {home}")
    module = sys.modules["framework"] = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


sys.modules[__name__] = _framework()
sys.meta_path.insert(0, _SameModules())
