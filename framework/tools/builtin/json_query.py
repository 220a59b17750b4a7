"""The tool `json_transform`: evaluates JMESPath expressions in a separate process."""

from __future__ import annotations

import json
import subprocess
from importlib import import_module
from pathlib import Path
from typing import Any

from framework.tools.builtin.files import format_size
from framework.tools.child_processes import child_environment, isolated_python
from framework.tools.files import open_file, readable_parts
from framework.tools.tool import ToolContext, tool
from framework.types.errors import ConfigError, ToolError

MAX_DATA_BYTES = 10 * 1024 * 1024
_MAX_EXPRESSION_CHARS = 2_000
_MAX_SECONDS = 5.0
_WORKER = Path(__file__).with_name("jmespath_process.py")
_PROGRAM = "import runpy; runpy.run_path(sys.argv[1], run_name='__main__')"


@tool(risk="low", idempotent=True, paths="path")
def json_transform(expression: str, data: str | None = None, path: str | None = None, *, context: ToolContext) -> Any:
    """Select, filter and reshape JSON with a JMESPath expression. Give the JSON itself as data, or a file as path.

    Args:
        expression: JMESPath, such as items[?price > `10`].{name: name, cost: price} or length(items) or keys(@).
        data: The JSON text.
        path: A JSON file of up to 10 MB, relative to the base folder.
        context: The run.
    """
    if (data is None) == (path is None):
        raise ToolError("give either data or path")
    if not expression.strip() or len(expression) > _MAX_EXPRESSION_CHARS:
        raise ToolError(f"the expression must have 1 to {_MAX_EXPRESSION_CHARS} characters; @ is all of the data")
    text = data if data is not None else _content(context, path or "")
    if len(text) > MAX_DATA_BYTES:
        raise ToolError(f"the data is larger than {format_size(MAX_DATA_BYTES)}")
    result = evaluate_jmespath(expression, text)
    return "null: the expression matches nothing in the data" if result is None else result


def _content(context: ToolContext, path: str) -> str:
    with open_file(context.files, readable_parts(context, path)) as file:
        content = file.read(MAX_DATA_BYTES + 1)
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ToolError(f"the file is not UTF-8 text (at byte {error.start + 1})") from None


def check_jmespath(expression: str) -> None:
    """Raise ConfigError if an expression of the operator is invalid."""
    try:
        import_module("jmespath").compile(expression)  # takes 0.1 s to import
    except ValueError as error:
        raise ConfigError(f"not a JMESPath expression: {' '.join(str(error).split())}") from None


def evaluate_jmespath(expression: str, data: str) -> Any:
    """Return the result of an expression for JSON text, within limits; raise ToolError. Blocks until it is known."""
    request = json.dumps({"expression": expression, "data": data})
    try:
        process = subprocess.run(
            isolated_python(_PROGRAM, str(_WORKER)),
            input=request.encode(),
            capture_output=True,
            env=child_environment(),
            timeout=_MAX_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise ToolError("evaluating the expression takes too long") from None
    if process.returncode < 0:  # killed by its CPU limit
        raise ToolError("evaluating the expression takes too long")
    if process.returncode > 0:
        reason = process.stderr.decode("utf-8", "replace").strip().rpartition("\n")[2]
        raise ToolError(f"the expression could not be evaluated: {reason}")
    answer: dict[str, str] = json.loads(process.stdout)
    if "error" in answer:
        raise ToolError(answer["error"])
    return json.loads(answer["result"])
