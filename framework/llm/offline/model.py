"""The offline model behind `model: offline`: a rule-based stand-in, to try and test agents without an API key.

A request is split into clauses; each clause becomes calls of the tool that matches it best, one clause per turn. The
model has no state: the results in the transcript show how far the request has progressed, and the answer is composed
of them.
"""

from __future__ import annotations

import asyncio
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
"""Limit of a request and of a result. The rules need no more, and the time of some grows faster than the text."""
_THRESHOLD = 2.0
_LITERAL_USED, _LITERAL_UNUSED, _OPTION_NAMED, _AGENT_ADDRESSED = 1.5, -1.0, 2.0, 6.0
_ACTION_UNKNOWN, _EFFECT_UNKNOWN = -1.0, -2.0
_RESULT_LENGTH = 600
_LABEL_LENGTH = 60
_LISTED_TOOLS = 6

_ADDRESSES_AGENT = re.compile(r"\b(?:ask|tell|let|have|agent|delegate)\b|让|问|交给|请|智能体", re.IGNORECASE)
_GREETING = re.compile(
    r"(?:(?:hi|hello|hey|good (?:morning|day|evening)|你好|您好)[\s,.!?，。！？]{0,3}){0,2}"
    r"(?:there|(?:what|how) can you (?:do|help)(?: for me| me)?|who are you|help|你能做什么|你会什么|你是谁|帮助)?"
    r"[\s,.!?，。！？]{0,3}",
    re.IGNORECASE,
)
_EXAMPLES = (
    ("calculator", "calculate the mean of [1, 2, 3]", "计算 [1, 2, 3] 的平均值"),
    ("search_files", "search for files containing 'agent'", "搜索包含 'agent' 的文件"),
    ("list_dir", "list the folder agents.d", "列出目录 agents.d"),
    ("text.count_words", "count the words in 'agents are files'", "统计 'agents are files' 的单词数"),
    ("log_transform", "show the errors of data/logs/app.log", "显示 data/logs/app.log 的错误"),
)
"""Messages that these rules understand, by the tool that they need: in English and in Chinese."""
_FAILED = re.compile(r"(Error\b|Denied\b|Cancelled\b|错误(?=[:：]))[:：]?\s*")
_ENDS = {"Denied": ("was denied", "被拒绝"), "Cancelled": ("was cancelled", "被取消")}
"""How a call ended, by the first word of its result; with any other word it failed."""
_NO_RESULTS = re.compile(
    r"(?:no|0|nothing)\b(?:\s+\w+)?\s+(?:match\w*|found|files?|results?|hits|lines?|entries)\b", re.IGNORECASE
)
_LISTED_AGENT = re.compile(r"^- ([a-z][a-z0-9_-]*): (.*)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class _Turn:
    """The state of a request: its text, the calls answered since, and earlier results, the latest first."""

    text: str
    answered: tuple[tuple[ToolCall | None, str], ...]
    requested: int
    """Number of calls requested so far."""
    earlier: tuple[str, ...]
    listed: str
    """A list at the end of the last instruction, to summarize if no tools are offered."""

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
        requested = sum(len(message.tool_calls) for message in after)
        return cls(text, answered, requested, earlier, listed[0].strip() if listed else "")

    def results_before(self, position: int) -> list[str]:
        """Return the results a clause can refer to after `position` answered calls, the latest first."""
        return [content for _, content in reversed(self.answered[:position])] + list(self.earlier)


class OfflineModel:
    """A model that follows rules: the same request always returns the same reply."""

    info = ModelInfo(provider="offline", model="", typed=True, stand_in=True)

    async def stream(self, request: ModelRequest) -> AsyncIterator[Delta]:
        """Answer, call matching tools, or plan; raise ModelError for typed answers other than plans and routes."""
        turn, tools = _Turn.read(request.messages), _usable(request)
        calls: tuple[ToolCall, ...] = ()
        if request.output is not None:
            text = _typed(request.output, turn.text, request.messages, tools)
        else:
            calls = tuple(_next_calls(turn, tools))
            text = (
                "" if calls else _answer(turn, tools) + _unread_files(request.messages, chinese=is_chinese(turn.text))
            )
        if request.stream:
            for piece in re.findall(r"[^\s\u4e00-\u9fff]+\s*|[\u4e00-\u9fff]{1,2}\s*|\s+", text):
                yield Delta(text=piece)
                await asyncio.sleep(0)  # as a network would, let readers run between two deltas
        message = Message(role="assistant", content=text, tool_calls=calls)
        usage = _usage(request.messages, message)
        yield Delta(reply=ModelReply(message, "tool_calls" if calls else "stop", usage, model="offline"))

    async def close(self) -> None:
        """Do nothing: there is no connection."""


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
    """Return the calls of the first clause that has no results yet."""
    position = 0
    for text in split_clauses(turn.text):
        picked = _pick(parse_clause(text), tools, turn.results_before(position))
        pending = picked[max(0, len(turn.answered) - position) :]
        if pending:
            return [
                ToolCall(id=f"call_{turn.requested + number}", tool=tool, arguments=arguments)
                for number, (tool, arguments) in enumerate(pending, start=1)
            ]
        position += len(picked)
    return []


def _pick(clause: Clause, tools: Sequence[ToolDefinition], earlier: Sequence[str]) -> list[tuple[str, dict[str, Any]]]:
    """Return the calls of the tool that matches the clause best (the first of a tie), or none below the threshold."""
    vocabularies = [tool_vocabulary(tool) for tool in tools]
    shared = Counter(word for vocabulary in vocabularies for word, weight in vocabulary.items() if weight >= IN_NAME)
    best, calls = (_THRESHOLD, -1), list[tuple[str, dict[str, Any]]]()
    for tool, vocabulary in zip(tools, vocabularies, strict=True):
        if filled := fill_arguments(tool, clause, earlier):
            score = _score(tool, clause, vocabulary, shared, filled[0])
            if score > best:
                best, calls = score, [(tool.name, call.arguments) for call in filled]
    return calls


def _score(
    tool: ToolDefinition, clause: Clause, vocabulary: Mapping[str, float], shared: Mapping[str, int], filled: FilledCall
) -> tuple[float, int]:
    """Return how well a tool matches, and how many words of its name the clause contains."""
    clause_words = clause.words | clause.hints
    hits = sorted(clause_words & vocabulary.keys())
    named = words(tool.name) & clause_words
    # A noun in the names of many tools (file) is weak evidence; a verb (search) is strong, however many share it.
    score = sum(vocabulary[word] / (1 if word in ACTION_WORDS else shared.get(word, 1)) for word in hits)
    if tool.name.startswith("agent."):
        addressed = words(tool.name) <= clause.words and _ADDRESSES_AGENT.search(clause.text)
        return score + (_AGENT_ADDRESSED if addressed else 0.0), len(named)
    if not any(vocabulary[word] > ELSEWHERE for word in hits):
        return 0.0, 0
    unknown = (clause.words & ACTION_WORDS) - vocabulary.keys()
    score += sum(_EFFECT_UNKNOWN if word in EFFECT_WORDS else _ACTION_UNKNOWN for word in sorted(unknown))
    score += _LITERAL_USED * filled.used + _LITERAL_UNUSED * filled.unused
    return score + (_OPTION_NAMED * filled.options if named else 0.0), len(named)


def _answer(turn: _Turn, tools: Sequence[ToolDefinition]) -> str:
    chinese = is_chinese(turn.text)
    if not turn.answered:
        return turn.listed if turn.listed and not tools else _introduction(turn.text, tools, chinese)
    statements = [_state(call, content, chinese, alone=len(turn.answered) == 1) for call, content in turn.answered]
    statements += [
        f"{text}：没有适合的工具" if chinese else f"{text}: no tool fits" for text in _unmatched(turn, tools)
    ]
    return statements[0] if len(statements) == 1 else "\n".join(f"- {statement}" for statement in statements)


def _unmatched(turn: _Turn, tools: Sequence[ToolDefinition]) -> Iterator[str]:
    """Yield the clauses that request an action but match no tool."""
    position = 0
    for text in split_clauses(turn.text) if tools else ():
        clause = parse_clause(text)
        picked = _pick(clause, tools, turn.results_before(position))
        position += len(picked)
        if not picked and clause.words & ACTION_WORDS:
            yield text


def _state(call: ToolCall | None, content: str, chinese: bool, *, alone: bool) -> str:
    """Return one result as a sentence."""
    name = call.tool if call else ("工具" if chinese else "the tool")
    label = _label(call) if call else name
    if failed := _FAILED.match(content):
        reason = _shorten(content[failed.end() :].strip())
        english, chinese_text = _ENDS.get(failed[1], ("failed", "失败"))
        return f"{label} {chinese_text}：{reason}" if chinese else f"{label} {english}: {reason}"
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
    if content.strip() in ("", "[]", "{}", "null", "None", '""') or _NO_RESULTS.match(content.strip()):
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


def _introduction(text: str, tools: Sequence[ToolDefinition], chinese: bool) -> str:
    names = [tool.name for tool in tools[:_LISTED_TOOLS]]
    if _GREETING.fullmatch(text):
        return _greeting(names, len(tools) > len(names), chinese)
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


def _greeting(names: Sequence[str], has_more: bool, chinese: bool) -> str:
    """Return what can be asked, for greetings and for the question what the agent can do."""
    tries = [(tool, english, translated) for tool, english, translated in _EXAMPLES if tool in names]
    more = (" 等" if chinese else " and others") if has_more else ""
    if chinese:
        can = f"我可以使用这些工具：{'、'.join(names)}{more}。" if names else "我现在没有可用的工具。"
        lines = [f"你好！{can}", *(f"- 例如：{translated}" for _, _, translated in tries)]
        return "\n".join([*lines, "", "（离线替身模型按规则回答；用 `-m openai/...` 可使用真正的模型。）"])
    can = f"I can use {', '.join(names)}{more}." if names else "I have no tools."
    lines = [f"Hello! {can}", *(f"- try: {english}" for _, english, _ in tries)]
    return "\n".join([*lines, "", "(A rule-based stand-in answers, not a model; use a real one with `-m openai/...`.)"])


def _unread_files(messages: Sequence[Message], *, chinese: bool) -> str:
    """Return how many files the last user's message and the results after it contain; empty if none."""
    start = max((at for at, message in enumerate(messages) if message.role == "user"), default=0)
    files = [part.description for message in messages[start:] for part in message.media]
    if not files:
        return ""
    if chinese:
        return f"\n\n（收到 {len(files)} 个文件，离线模型不能读取：{'、'.join(files)}）"
    count = "1 file" if len(files) == 1 else f"{len(files)} files"
    return f"\n\n({count} received, which the offline model cannot read: {', '.join(files)})"


def _typed(output: type[Any], text: str, messages: Sequence[Message], tools: Sequence[ToolDefinition]) -> str:
    fields = output.model_json_schema().get("properties", {}).keys()
    if {"goal", "steps"} <= fields:
        return draft_plan(text, messages, tools, _pick).model_dump_json()
    if {"agent", "executor"} <= fields:
        return _choose_agent(text, messages)
    raise ModelError(f"the offline model answers only plans and routes: {output.__name__} needs a real model")


def _choose_agent(text: str, messages: Sequence[Message]) -> str:
    """Return the choice of an agent as JSON, by the words its description shares with the message.

    The confidence is 0 if no word is shared.
    """
    listed = [
        entry for message in messages if message.role == "system" for entry in _LISTED_AGENT.findall(message.content)
    ]
    message_words = words(text)
    shared = {name: sorted(message_words & (words(about) | words(name))) for name, about in listed}
    agent = max(shared, key=lambda name: len(shared[name]), default="")
    hits = shared.get(agent, [])
    is_only_agent = len(shared) == 1
    return json.dumps(
        {
            "agent": agent,
            "executor": "plan" if len(split_clauses(text)) > 1 else "react",
            "reason": f"it is about {', '.join(hits)}" if hits else "nothing else is known of it",
            "confidence": 1.0 if is_only_agent else round(len(hits) / (len(hits) + 1), 2),
        }
    )
