"""Evaluates one JMESPath expression within limits of time and memory. Executed as a script, never imported.

An expression of a few characters can use any amount of memory and time, and a thread that does so cannot be stopped. A
process can: it limits itself, and its parent can kill it.

Reads `{"expression": …, "data": JSON text}` and writes `{"result": JSON text}` or `{"error": …}`.
"""

from __future__ import annotations

import json
import resource
import sys
from contextlib import suppress
from typing import NoReturn

import jmespath  # type: ignore[import-untyped]  # it has no type hints
from jmespath.exceptions import JMESPathError  # type: ignore[import-untyped]  # it has no type hints

_MEMORY_BYTES = 512 * 1024 * 1024
_CPU_SECONDS = 2
_MAX_RESULT_CHARS = 100_000
"""Maximum length of the result, as JSON."""


def _main() -> None:
    for kind, limit in ((resource.RLIMIT_AS, _MEMORY_BYTES), (resource.RLIMIT_CPU, _CPU_SECONDS)):
        with suppress(OSError, ValueError):  # macOS cannot limit the address space
            resource.setrlimit(kind, (limit, limit))
    request = json.load(sys.stdin)
    try:
        answer = {"result": _evaluate(request["expression"], request["data"])}
    except MemoryError:
        answer = {"error": "the expression needs too much memory"}
    except RecursionError:
        answer = {"error": "the data or the expression is nested too deeply"}
    except JMESPathError as error:
        answer = {"error": str(error).partition("\n")[0].rstrip(":, ")}  # without the expression, marked with a ^
    except ValueError as error:
        answer = {"error": str(error)}
    json.dump(answer, sys.stdout)


def _evaluate(expression: str, data: str) -> str:
    """Return the result as JSON text; raise ValueError if the data is not JSON or the result is too large."""
    compiled = jmespath.compile(expression)
    try:
        value = json.loads(data, parse_constant=_refuse)
    except json.JSONDecodeError as error:
        message = f"the data is not JSON: {error.msg} at line {error.lineno}, column {error.colno}"
        raise ValueError(message) from None
    result, length = [], 0
    for chunk in json.JSONEncoder(ensure_ascii=False).iterencode(compiled.search(value)):
        result.append(chunk)
        length += len(chunk)
        if length > _MAX_RESULT_CHARS:
            raise ValueError(
                f"the result has more than {_MAX_RESULT_CHARS} characters: choose less, or use a slice like [:10]"
            )
    return "".join(result)


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"the data is not JSON: {constant} is not a JSON number")


if __name__ == "__main__":
    _main()
