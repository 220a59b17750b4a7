"""The stand-in behind `model: offline`: rules instead of a model, for trying agents and testing them without a key.

A request is split into clauses; each clause becomes the calls of the tool that fits it best, one clause a turn. Nothing
is remembered: the results in the transcript tell how far the request is, and the answer is made of them.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from framework.llm.client import Delta, ModelInfo, ModelReply, ModelRequest
from framework.llm.offline.arguments import FilledCall, fill_arguments
from framework.llm.offline.plan import draft_plan
from framework.llm.offline.words import (
    ACTION_WORDS,
    EFFECT_WORDS,
    ELSEWHERE,
    IN_NAME,
    Clause,
    is_chinese,
    parse_clause,
    split_clauses,
    tool_vocabulary,
    words,
)
from framework.types.errors import ModelError
from framework.types.messages import Message, ToolCall, ToolDefinition, Usage

_MAX_INPUT_CHARS = 20_000
"""Of a request and of a result: rules over words do not need more, and some of them take longer than the text grows."""
_THRESHOLD = 2.0
_LITERAL_USED, _LITERAL_LEFT, _OPTION_NAMED, _AGENT_ASKED = 1.5, -1.0, 2.0, 6.0
_ACTION_UNKNOWN, _EFFECT_UNKNOWN = -1.0, -2.0
_RESULT_LENGTH = 600
_LABEL_LENGTH = 60
_LISTED_TOOLS = 6

_ASKS_AN_AGENT = re.compile(r"\b(?:ask|tell|let|have|agent|delegate)\b|让|问|交给|请|智能体", re.IGNORECASE)
_FAILED = re.compile(r"(Error\b|Denied\b|Cancelled\b|错误(?=[:：]))[:：]?\s*")
_ENDS = {"Denied": ("was denied", "被拒绝"), "Cancelled": ("was cancelled", "被取消")}
"""How a call ended, by the first word of its result; any other failed."""
_NOTHING = re.compile(
    r"(?:no|0|nothing)\b(?:\s+\w+)?\s+(?:match\w*|found|files?|results?|hits|lines?|entries)\b", re.IGNORECASE
)
_LISTED_AGENT = re.compile(r"^- ([a-z][a-z0-9_-]*): (.*)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class _Turn:
    """What the transcript says: the request, the calls answered since, and results from before, the latest first."""

    text: str
    answered: tuple[tuple[ToolCall | None, str], ...]
    asked: int
    earlier: tuple[str, ...]
    listed: str
    """A list at the end of the last instruction: what is to be summed up where no tools are offered."""

    @classmethod
    def read(cls, messages: Sequence[Message]) -> _Turn:
        start = max((at for at, message in enumerate(messages) if message.role == "user"), default=None)
        before, after = (messages[:start], messages[start:]) if start is not None else ((), messages)
        calls = {call.id: call for message in after for call in message.tool_calls}
        answered = tuple((calls.get(m.tool_call_id or ""), m.content) for m in after if m.role == "tool")
        earlier = tuple(message.content[:_MAX_INPUT_CHARS] for message in reversed(before) if message.role == "tool")
        text = messages[start].content.strip()[:_MAX_INPUT_CHARS] if start is not None else ""
        instruction = after[-1].content if after and after[-1].role in ("system", "user") else ""
        listed = re.search(r"^\s*(?:[-*]|[0-9]+[.)])\s.*\Z", instruction, re.MULTILINE | re.DOTALL)
        asked = sum(len(message.tool_calls) for message in after)
        return cls(text, answered, asked, earlier, listed[0].strip() if listed else "")

    def results_before(self, position: int) -> list[str]:
        """The results a clause can point at when `position` calls were answered before it, the latest first."""
        return [content for _, content in reversed(self.answered[:position])] + list(self.earlier)


class OfflineModel:
    """A model that follows rules: the same request always gets the same reply."""

    info = ModelInfo(provider="offline", model="", typed=True, stand_in=True)

    async def stream(self, request: ModelRequest) -> AsyncIterator[Delta]:
        """Answer, call the tools that fit, or plan; raises ModelError for other typed answers than plans and routes."""
        turn, tools = _Turn.read(request.messages), _usable(request)
        calls: tuple[ToolCall, ...] = ()
        if request.output is not None:
            text = _typed(request.output, turn.text, request.messages, tools)
        else:
            calls = tuple(_next_calls(turn, tools))
            text = "" if calls else _answer(turn, tools)
        if request.stream:
            for piece in re.findall(r"[^\s\u4e00-\u9fff]+\s*|[\u4e00-\u9fff]{1,2}\s*|\s+", text):
                yield Delta(text=piece)
        message = Message(role="assistant", content=text, tool_calls=calls)
        usage = _usage(request.messages, message)
        yield Delta(reply=ModelReply(message, "tool_calls" if calls else "stop", usage, model="offline"))

    async def close(self) -> None:
        """Nothing to give back."""


def _usable(request: ModelRequest) -> tuple[ToolDefinition, ...]:
    match request.settings.tool_choice:
        case None | "auto" | "required":
            return request.tools
        case choice:
            return tuple(tool for tool in request.tools if tool.name == choice)


def _usage(messages: Sequence[Message], reply: Message) -> Usage:
    prompt = sum(_tokens(message) for message in messages)
    completion = _tokens(reply)
    return Usage(prompt_tokens=prompt, completion_tokens=completion, total_tokens=prompt + completion)


def _tokens(message: Message) -> int:
    arguments = sum(len(call.tool) + len(_json(call.arguments)) for call in message.tool_calls)
    return max(1, (len(message.content) + arguments) // 4)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)


def _next_calls(turn: _Turn, tools: Sequence[ToolDefinition]) -> list[ToolCall]:
    """The calls of the first clause that has no results yet."""
    position = 0
    for text in split_clauses(turn.text):
        picked = _pick(parse_clause(text), tools, turn.results_before(position))
        open_ = picked[max(0, len(turn.answered) - position) :]
        if open_:
            return [
                ToolCall(id=f"call_{turn.asked + number}", tool=tool, arguments=arguments)
                for number, (tool, arguments) in enumerate(open_, start=1)
            ]
        position += len(picked)
    return []


def _pick(clause: Clause, tools: Sequence[ToolDefinition], earlier: Sequence[str]) -> list[tuple[str, dict[str, Any]]]:
    """The calls of the tool that fits the clause best, the earlier one of two; none where none fits well enough."""
    known = [tool_vocabulary(tool) for tool in tools]
    shared = Counter(word for vocabulary in known for word, weight in vocabulary.items() if weight >= IN_NAME)
    best, calls = (_THRESHOLD, -1), list[tuple[str, dict[str, Any]]]()
    for tool, vocabulary in zip(tools, known, strict=True):
        if filled := fill_arguments(tool, clause, earlier):
            score = _score(tool, clause, vocabulary, shared, filled[0])
            if score > best:
                best, calls = score, [(tool.name, one.arguments) for one in filled]
    return calls


def _score(
    tool: ToolDefinition, clause: Clause, vocabulary: Mapping[str, float], shared: Mapping[str, int], filled: FilledCall
) -> tuple[float, int]:
    """How well a tool fits, and how many words of its name are said."""
    said = clause.words | clause.hints
    hits = sorted(said & vocabulary.keys())
    named = words(tool.name) & said
    # A thing that many tools are named after (files) says little; an action (search) says much, however many share it.
    score = sum(vocabulary[word] / (1 if word in ACTION_WORDS else shared.get(word, 1)) for word in hits)
    if tool.name.startswith("agent."):
        asked = words(tool.name) <= clause.words and _ASKS_AN_AGENT.search(clause.text)
        return score + (_AGENT_ASKED if asked else 0.0), len(named)
    if not any(vocabulary[word] > ELSEWHERE for word in hits):
        return 0.0, 0
    unknown = (clause.words & ACTION_WORDS) - vocabulary.keys()
    score += sum(_EFFECT_UNKNOWN if word in EFFECT_WORDS else _ACTION_UNKNOWN for word in sorted(unknown))
    score += _LITERAL_USED * filled.used + _LITERAL_LEFT * filled.left
    return score + (_OPTION_NAMED * filled.options if named else 0.0), len(named)


def _answer(turn: _Turn, tools: Sequence[ToolDefinition]) -> str:
    chinese = is_chinese(turn.text)
    if not turn.answered:
        return turn.listed if turn.listed and not tools else _introduction(tools, chinese)
    stated = [_state(call, content, chinese, alone=len(turn.answered) == 1) for call, content in turn.answered]
    stated += [f"{text}：没有适合的工具" if chinese else f"{text}: no tool fits" for text in _undone(turn, tools)]
    return stated[0] if len(stated) == 1 else "\n".join(f"- {one}" for one in stated)


def _undone(turn: _Turn, tools: Sequence[ToolDefinition]) -> Iterator[str]:
    """Yield the clauses that ask for an action none of the tools can do."""
    position = 0
    for text in split_clauses(turn.text) if tools else ():
        clause = parse_clause(text)
        picked = _pick(clause, tools, turn.results_before(position))
        position += len(picked)
        if not picked and clause.words & ACTION_WORDS:
            yield text


def _state(call: ToolCall | None, content: str, chinese: bool, *, alone: bool) -> str:
    """One result in words."""
    name = call.tool if call else ("工具" if chinese else "the tool")
    label = _label(call) if call else name
    if failed := _FAILED.match(content):
        why = _shorten(content[failed.end() :].strip())
        english_how, chinese_how = _ENDS.get(failed[1], ("failed", "失败"))
        return f"{label} {chinese_how}：{why}" if chinese else f"{label} {english_how}: {why}"
    if _is_empty(content):
        return f"没有找到结果（{label}）。" if chinese else f"Nothing was found ({label})."
    result = _shorten(_readable(content))
    if alone:
        return result
    if call and set(call.arguments) & {"expression", "formula"}:
        return f"{label} = {result}"
    colon = "：" if chinese else ": "
    return f"{label}{colon}\n{result}" if "\n" in result else f"{label}{colon}{result}"


def _label(call: ToolCall) -> str:
    for name in ("expression", "formula"):
        if name in call.arguments:
            return str(call.arguments[name])
    return f"{call.tool}({', '.join(_shorten(_scalar(value), _LABEL_LENGTH) for value in call.arguments.values())})"


def _is_empty(content: str) -> bool:
    if content.strip() in ("", "[]", "{}", "null", "None", '""') or _NOTHING.match(content.strip()):
        return True
    data = _parsed(content)
    lists = [value for value in data.values() if isinstance(value, list)] if isinstance(data, dict) else []
    return bool(lists) and not any(lists)


def _readable(content: str) -> str:
    match _parsed(content):
        case dict() as data:
            return "\n".join(f"{key}: {_scalar(value)}" for key, value in data.items())
        case list() as data:
            return "\n".join(f"- {_one_line(item)}" for item in data)
        case str() as text:
            return text
    return content.strip()


def _one_line(item: Any) -> str:
    if not isinstance(item, dict):
        return _scalar(item)
    return ", ".join(f"{key}: {_scalar(value)}" for key, value in item.items())


def _scalar(value: Any) -> str:
    return value if isinstance(value, str) else _json(value)


def _parsed(content: str) -> Any:
    if not content.lstrip().startswith(("{", "[", '"')):
        return None
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        return None


def _shorten(text: str, length: int = _RESULT_LENGTH) -> str:
    return text if len(text) <= length else text[: length - 1].rstrip() + "…"


def _introduction(tools: Sequence[ToolDefinition], chinese: bool) -> str:
    names = [tool.name for tool in tools[:_LISTED_TOOLS]]
    if chinese:
        more = " 等" if len(tools) > len(names) else ""
        can = f"我能按规则调用这些工具：{'、'.join(names)}{more}" if names else "现在没有工具可用"
        real = "要用真正的模型，请设置 OPENAI_API_KEY 并写 `model: openai/...`。"
        return f"我是离线替身模型，没有找到适合这个请求的做法；{can}。{real}"
    more = " and others" if len(tools) > len(names) else ""
    can = f"by its rules it can call {', '.join(names)}{more}" if names else "it has been offered no tools"
    return (
        f"This is the offline stand-in, and it knows no way to do this; {can}."
        " For a real model set OPENAI_API_KEY and write `model: openai/...`."
    )


def _typed(output: type[Any], text: str, messages: Sequence[Message], tools: Sequence[ToolDefinition]) -> str:
    wanted = output.model_json_schema().get("properties", {}).keys()
    if {"goal", "steps"} <= wanted:
        return draft_plan(text, messages, tools, _pick).model_dump_json()
    if {"agent", "executor"} <= wanted:
        return _choose_agent(text, messages)
    raise ModelError(f"the offline model answers only plans and routes: {output.__name__} needs a real model")


def _choose_agent(text: str, messages: Sequence[Message]) -> str:
    """The choice as JSON; its confidence is 0 where no word is shared."""
    listed = [
        found for message in messages if message.role == "system" for found in _LISTED_AGENT.findall(message.content)
    ]
    said = words(text)
    shared = {name: sorted(said & (words(described) | words(name))) for name, described in listed}
    agent = max(shared, key=lambda name: len(shared[name]), default="")
    hits = shared.get(agent, [])
    alone = len(shared) == 1
    return json.dumps(
        {
            "agent": agent,
            "executor": "plan" if len(split_clauses(text)) > 1 else "react",
            "reason": f"it is about {', '.join(hits)}" if hits else "nothing else is known of it",
            "confidence": 1.0 if alone else round(len(hits) / (len(hits) + 1), 2),
        }
    )
