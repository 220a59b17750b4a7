"""Finds function calls that a model wrote into its text, because its server has no parser for them.

Such a call is never executed: only the server knows which text is a call. It is no answer either.

A text that begins with a call in the form of a family of models is one; so is a text that ends with such a call of an
offered tool, and a text that consists of the call of an offered tool in JSON or in Python. Forms in quotes, in blocks
of code and within prose are part of an answer.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

from framework.llm.client import ModelInfo, ModelReply, ModelRequest
from framework.types.errors import ModelError
from framework.types.messages import ToolDefinition

_NAME = r"[\w.:/-]{1,100}"
_TAG = (
    r"<(?P<special>[|｜])?[^\s<>\[\]]{0,30}(?:tool|function)[_▁]?calls?[^\s<>\[\]]{0,30}>"
    r"|<\|(?:python_tag|python_start|start_action|action_start|tools_prefix|call_start)\|>"
)
"""Tags and special tokens before calls: Hermes, Qwen, GLM, DeepSeek, Kimi, MiniMax, Granite, Gemma, Llama, Command."""
_BODY = rf"\s{{0,20}}(?:[\[{{<]|```)|\n?(?:call:)?{_NAME}[^\S\n]?\n?(?:[\[{{<(]|```)"
"""What follows such a tag if it is no prose about it."""
_BEGINNING = re.compile(
    rf"(?:{_TAG})(?:{_BODY})"
    rf"|\[TOOL_CALLS?\]\s{{0,20}}(?:\[\s{{0,20}})?(?:\{{|{_NAME}\s?[\[{{])"
    rf"|<function={_NAME}|functools\[|```tool_(?:code|call)|(?:[^\s<>]{{0,20}}<\|[a-z]{{1,20}}\|>){{0,3}}"
    r"(?:assistant|commentary|analysis)?\s?to=functions\."
    r"|\]<\]minimax\[>\[<tool_call>|(?:<\|message_sep\|>\s{0,9})?function call<\|role_sep\|>|-> ?tool/function_call\n",
    re.IGNORECASE,
)
"""The beginning of a text that is a call, whichever tool it names."""
_INSIDE = re.compile(rf"(?:{_TAG})(?={_BODY})|<function=|\[TOOL_CALLS?\]", re.IGNORECASE)
_KEY = r'"(?:type|id|tool_call_id|index)"\s*:\s*"?[^",:{}\[\]]{0,100}"?\s*,\s*'
_OPEN = rf"\{{\s*(?:{_KEY}){{0,3}}"
_OBJECT = re.compile(
    rf'(?:\[\s*)?{_OPEN}(?:"(?:function|tool_calls?|function_call)"\s*:\s*(?:\[\s*)?{_OPEN}){{0,2}}'
    r'"(?P<key>name|tool|tool_name|function|function_name)"\s*:\s*"(?P<name>[^"\s]{1,100})"\s*,\s*'
    r'"(?:arguments|parameters|args|input|tool_input|params|kwargs)"\s*:'
)
"""A call as JSON, alone or the first of a list."""
_EXPRESSION = re.compile(
    rf"(?P<list>\[\s*)?(?:call:)?(?P<name>{_NAME}?)(?::\d+)?"
    r"(?:(?P<open>\()(?=\s*(?:\w{1,100}\s*=|[\"'{\[\d)]))|\n?\{(?=\s*(?:[\"'}]|\w{1,100}\s*:)))"
)
"""A call as in Python, alone or the first of a list, or as a name before an object."""
_ELEMENT = re.compile(rf"<(?:invoke|function)\s+name=[\"'](?P<name>{_NAME})")
_WORD = re.compile(r"[\w.-]+")
_NAMED_WITHIN = 200
"""Characters after a tag in which the name of the tool stands."""
_MOST_TAGS = 20
_ADVICE = (
    "start the server with its parser for tool calls (vLLM: --enable-auto-tool-choice --tool-call-parser NAME, "
    "SGLang: --tool-call-parser NAME, llama.cpp: --jinja), or set `protocol: json` in the agent's file"
)
_CORRECTION = (
    "Your last answer contained a function call as text. Nothing was executed, and nobody has read the answer. {advice}"
)
_CALL = "Call functions through the tool call interface only, without writing the call as text; or answer in text."
_ANSWER = "No function can be called now: answer in text, without a call."


def reject_text_calls(
    reply: ModelReply, request: ModelRequest, info: ModelInfo, offered: Sequence[ToolDefinition]
) -> None:
    """Reject a reply whose text is a function call, in the form of any family of models.

    Args:
        reply: the reply, without thoughts in its text.
        request: the request that it answers.
        info: the model.
        offered: the tools of the agent. An agent without tools may write what it likes.

    Raises:
        ModelError: retryable, with a correction for the model. Carries the reply's usage.
    """
    if not offered or reply.message.tool_calls or reply.unusable or info.stand_in or info.describes_json:
        return
    name = find_text_call(reply.message.content, offered, request.json)
    if name is None:
        return
    what = f"a call of {name}" if name else "a function call"
    can_call = request.tools and request.settings.tool_choice != "none"
    error = ModelError(
        f"{info.name}: the answer is {what} as text, which is not executed: {_ADVICE}",
        retryable=True,
        correction=_CORRECTION.format(advice=_CALL if can_call else _ANSWER),
    )
    error.usage, error.has_begun = reply.usage, True
    raise error.of_type("text_call")


def find_text_call(text: str, offered: Sequence[ToolDefinition], answer: Mapping[str, Any] | None = None) -> str | None:
    """Return the offered tool that a text calls, an empty name for another one, and None if it is no call.

    Args:
        text: the text of a reply.
        offered: the tools that the model knows.
        answer: JSON Schema of the answer, `{}` for any object; None if the answer is text. JSON that may fit it is
            no call.
    """
    text = text.strip()
    if _BEGINNING.match(text):
        return _named_in(text, offered)
    if (element := _ELEMENT.match(text)) and (name := _named_in(element["name"], offered)):
        return name
    called = _object_call(text, offered, answer) or (_expression_call(text, offered) if answer is None else None)
    return called or _call_at_end(text, offered)


def _object_call(text: str, offered: Sequence[ToolDefinition], answer: Mapping[str, Any] | None) -> str | None:
    """Return the offered tool that a text calls as JSON."""
    found = _OBJECT.match(text)
    if found is None or (answer is not None and found["key"] in answer.get("properties", (found["key"],))):
        return None
    return _named_in(found["name"], offered) or None


def _expression_call(text: str, offered: Sequence[ToolDefinition]) -> str | None:
    """Return the offered tool that a text calls as in Python, if nothing follows the call."""
    found = _EXPRESSION.match(text)
    if found is None or not text.endswith((")" if found["open"] else "}") + ("]" if found["list"] else "")):
        return None
    return _named_in(found["name"], offered) or None


def _call_at_end(text: str, offered: Sequence[ToolDefinition]) -> str | None:
    """Return the offered tool that a text calls after some prose, in lines of their own or after a special token."""
    if text[-1:] not in ("}", "]", ">"):
        return None
    for tag in islice(_INSIDE.finditer(text), _MOST_TAGS):
        is_apart = tag["special"] or not text[text.rfind("\n", 0, tag.start()) + 1 : tag.start()].strip()
        if is_apart and text[tag.start() - 1] != "`" and text.count("```", 0, tag.start()) % 2 == 0:
            return _named_in(text[tag.end() :], offered) or None
    return None


def _named_in(text: str, offered: Sequence[ToolDefinition]) -> str:
    """Return the first offered tool that the beginning of a text names; empty if there is none."""
    names = {spelling.lower(): tool.name for tool in offered for spelling in (tool.name, tool.wire_name)}
    words = (word.lower() for word in _WORD.findall(text[:_NAMED_WITHIN]))
    spellings = (spelling for word in words for spelling in (word, word.partition(".")[2]))
    return next((names[spelling] for spelling in spellings if spelling in names), "")
