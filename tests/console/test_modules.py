"""The process in which tests call functions of the console's modules."""

from __future__ import annotations

import pytest

from tests.support.node_modules import ModuleError, call


def test_a_function_of_a_module_is_called() -> None:
    assert call("core/format.js", "runName", "run_0123456789") == "run_01234567"
    assert call("core/format.js", "runName", "run_\u2028\ud83d\n") == "run_\u2028\ud83d\n", "any text is passed on"


def test_errors_name_the_module_and_the_function() -> None:
    with pytest.raises(ModuleError, match=r"core/format\.js exports no function nothing"):
        call("core/format.js", "nothing")
    with pytest.raises(ModuleError, match=r"none\.js"):
        call("core/none.js", "nothing")
