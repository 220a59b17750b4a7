"""What a model wrote into its text besides the answer: thoughts, and function calls.

Blocks at the start, such as `<think>…</think>`, are thoughts, also if the last one is never closed. Many chat
templates open the block themselves, so that the text contains only its end tag: what precedes that is thoughts, too.
Tags that an answer quotes or shows in a block of code are part of the answer.

A function call in a text is never executed: only the server knows which text is a call. It is no answer either. A text
that starts with a call in the form of a family of models is one; so is a text that ends with such a call of an offered
tool, and a text that consists of the call of an offered tool in JSON or in Python. Forms in quotes, in blocks of code
and within prose are part of an answer. A reply without a call and without visible text is no answer.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Literal

from framework.llm.client import ModelInfo, ModelReply, ModelRequest
from framework.types.errors import ModelError
from framework.types.messages import Message, Reasoning, ToolDefinition

_ANALYSIS, _FINAL = "<|channel|>analysis<|message|>", "<|channel|>final<|message|>"
_END_TAGS = {
    "<think>": "</think>",
    "<thinking>": "</thinking>",
    "<thought>": "</thought>",
    "<seed:think>": "</seed:think>",
    "[think]": "[/think]",
    _ANALYSIS: "<|end|>",
    f"<|start|>assistant{_ANALYSIS}": "<|end|>",
    _FINAL: "",
    f"<|start|>assistant{_FINAL}": "",
}
"""The end of each kind of block, by its start; the header of an answer has none."""
_LONE = tuple(tag for tag in _END_TAGS.values() if tag[1:2] == "/")
_CHANNEL_ENDS = ("<|end|>", "<|return|>")
_LONGEST = max(map(len, _END_TAGS))
_MOST_BLANKS = 10_000
_QUOTES = "`'\"“”‘’"
_FENCE = "```"


def _any_of(tags: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(map(re.escape, tags)), re.IGNORECASE)


_OPENING, _CLOSING, _CHANNEL_END = map(_any_of, (tuple(_END_TAGS), _LONE, _CHANNEL_ENDS))


@dataclass(frozen=True, slots=True)
class Separated:
    """A piece of a reply, as answer and thoughts."""

    text: str = ""
    thoughts: str = ""
    is_void: bool = False
    """What was returned as text before was thoughts: `thoughts` contains it."""


class ThoughtSplitter:
    """Separates a text that arrives in pieces.

    Args:
        begins_inside: the text is expected to start with thoughts without a tag. If no end tag follows, the whole text
            is the answer.
        finds_lone_tags: whether what precedes an end tag without a start is thoughts.
    """

    def __init__(self, *, begins_inside: bool = False, finds_lone_tags: bool = True) -> None:
        self._state: Literal["start", "thoughts", "answer"] = "start"
        self._begins_inside = begins_inside
        self._watches = finds_lone_tags
        self._held = ""
        """The end of the text so far, which may be the start of a tag."""
        self._said: list[str] = []
        """The text before a possible end tag without a start."""
        self._end = _CLOSING
        self._ends: tuple[str, ...] = ()
        self._channels = False
        self._blanks = ""
        """Blanks after the thoughts so far."""
        self._has_thoughts = False
        self.blocks = 0
        """Blocks of thoughts found so far."""
        self.is_lone = False
        """Whether the thoughts had an end tag only."""

    @property
    def has_tags(self) -> bool:
        """Whether anything of the text is no answer."""
        return self.blocks > 0 or self._channels

    @property
    def is_open(self) -> bool:
        """Whether a block of thoughts has started and not ended."""
        return self._state == "thoughts" and self.blocks > 0

    def without_lone_tags(self) -> None:
        """Take an end tag without a start as part of the answer, because the thoughts arrive separately."""
        self._watches = False

    def add(self, text: str) -> Separated:
        """Add a piece of the text; return what it is known to be so far."""
        if self._state == "answer" and not (self._held or self._channels or _may_have_tags(text)):
            if self._watches:
                self._said.append(text)
            return Separated(text)
        self._held += text
        return self._separate(is_last=False)

    def finish(self) -> Separated:
        """Return the rest, after the last piece."""
        rest = self._separate(is_last=True)
        if self._state == "thoughts" and not self.blocks:  # the expected end tag did not come
            return Separated("".join(self._said), rest.thoughts)
        return rest

    def _separate(self, *, is_last: bool) -> Separated:
        thoughts = ""
        if self._state == "start" and not self._begin(is_last=is_last):
            return Separated()
        while self._state == "thoughts":
            found = self._end.search(self._held)
            if found is None:
                released = self._release(self._ends, is_last=is_last)
                if not self.blocks:
                    self._said.append(released)
                return Separated(thoughts=thoughts + self._thought(released))
            thoughts += self._thought(self._held[: found.start()])
            self._held = self._held[found.end() :]
            self.is_lone |= not self.blocks
            self.blocks += not self.blocks
            self._state, self._watches = "start", False
            if not self._begin(is_last=is_last):
                return Separated(thoughts=thoughts)
        answer = self._answer(is_last=is_last)
        return Separated(answer.text, thoughts + answer.thoughts, answer.is_void)

    def _answer(self, *, is_last: bool) -> Separated:
        """Return what is held of the answer, or what it turns out to be if a lone end tag follows."""
        if self._channels:
            self._held = _CHANNEL_END.sub("", self._held)
            return Separated(self._release(_CHANNEL_ENDS, is_last=is_last))
        found = _CLOSING.search(self._held) if self._watches else None
        if found is not None:
            if not is_last and found.end() == len(self._held):  # the next character may be a quote
                return Separated()
            self._watches = False
            before = "".join(self._said) + self._held[: found.start()]
            if _is_lone_tag(before, self._held[found.end() : found.end() + 1]):
                self._state, self._held = "start", self._held[found.end() :]
                self.is_lone, self.blocks = True, 1
                rest = self._separate(is_last=is_last)
                return Separated(rest.text, before.strip() + rest.thoughts, is_void=any(self._said))
        text = self._release(_LONE if self._watches else (), is_last=is_last)
        if self._watches:
            self._said.append(text)
        return Separated(text)

    def _begin(self, *, is_last: bool) -> bool:
        """Find out whether thoughts or the answer start here; return False if more text is needed to know."""
        rest = self._held.lstrip()
        opening = _OPENING.match(rest)
        if opening is None:
            beginning = rest[:_LONGEST].lower()
            may_follow = any(tag.startswith(beginning) for tag in _END_TAGS) and len(self._held) < _MOST_BLANKS
            if may_follow and not is_last:
                return False
            if self.blocks or self._channels:
                self._held = rest
            expects_thoughts = self._begins_inside and not self.blocks
            self._state = "thoughts" if expects_thoughts else "answer"
            self._ends = _LONE
            self._watches = self._watches and rest[:1] not in ("{", "[")
            return True
        self._held = rest[opening.end() :]
        self._watches = False
        end = _END_TAGS[opening[0].lower()]
        self._channels |= opening[0].startswith("<|")
        if end:
            self._state, self._end, self._ends = "thoughts", re.compile(re.escape(end), re.IGNORECASE), (end,)
            self.blocks += 1
        else:
            self._state, self._held = "answer", self._held.lstrip()
        return True

    def _thought(self, text: str) -> str:
        """Return a piece of thoughts without the blanks around all of them."""
        text = self._blanks + text
        shown = text if len(text) > _MOST_BLANKS and text.isspace() else text.rstrip()
        self._blanks = text[len(shown) :]
        if not self._has_thoughts:
            shown = shown.lstrip()
            self._has_thoughts = bool(shown)
        return shown

    def _release(self, tags: tuple[str, ...], *, is_last: bool) -> str:
        """Return the text that is held, except an end that may be the start of a tag."""
        keep = len(self._held)
        tail = self._held[-_LONGEST:].lower()
        start = max(tail.rfind("<"), tail.rfind("["))
        if not is_last and start >= 0 and any(tag.startswith(tail[start:]) for tag in tags):
            keep -= len(tail) - start
        released, self._held = self._held[:keep], self._held[keep:]
        return released


def split_thoughts(text: str) -> tuple[str, str]:
    """Return the thoughts in a complete text, empty if there are none, and the answer, unchanged if there are none."""
    if not _may_have_tags(text):
        return "", text
    splitter = ThoughtSplitter()
    parts = splitter.add(text), splitter.finish()
    if not splitter.has_tags:
        return "", text
    return _joined(parts)


def without_thoughts(message: Message, provider: str) -> Message:
    """Return a message of a model with the thoughts in its text as its reasoning."""
    if not _may_have_tags(message.content):
        return message
    reasoning = message.reasoning
    splitter = ThoughtSplitter(finds_lone_tags=reasoning is None or not reasoning.text)
    parts = splitter.add(message.content), splitter.finish()
    if not splitter.has_tags:
        return message
    thoughts, answer = _joined(parts)
    if reasoning is None:
        reasoning = Reasoning(text=thoughts, provider=provider) if thoughts else None
    elif thoughts and thoughts not in reasoning.text:
        reasoning = reasoning.model_copy(update={"text": "\n".join(filter(None, (reasoning.text, thoughts)))})
    return message.model_copy(update={"content": answer, "reasoning": reasoning})


def _may_have_tags(text: str) -> bool:
    """Return whether a text may contain a tag; each starts with one of these."""
    return "<" in text or "[" in text


def _joined(parts: Iterable[Separated]) -> tuple[str, str]:
    separated = tuple(parts)
    return "".join(part.thoughts for part in separated).strip(), "".join(part.text for part in separated).strip()


def _is_lone_tag(before: str, after: str) -> bool:
    """Return whether an end tag ends thoughts; a quoted one, or one in a block of code, does not."""
    is_quoted = any(quote in (before[-1:], after) for quote in _QUOTES)
    return not is_quoted and before.count(_FENCE) % 2 == 0 and _OPENING.search(before) is None


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
"""The start of a text that is a call, whichever tool it names."""
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

    `offered` are the tools of the agent. An agent without tools may write what it likes.

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
    error.usage, error.has_started = reply.usage, True
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
    """Return the first offered tool that the start of a text names; empty if there is none."""
    names = {spelling.lower(): tool.name for tool in offered for spelling in (tool.name, tool.wire_name)}
    words = (word.lower() for word in _WORD.findall(text[:_NAMED_WITHIN]))
    spellings = (spelling for word in words for spelling in (word, word.partition(".")[2]))
    return next((names[spelling] for spelling in spellings if spelling in names), "")


def require_content(reply: ModelReply, info: ModelInfo) -> None:
    """Reject a reply that contains neither tool calls nor visible text, whichever client it comes from.

    Reasoning alone does not count, neither in its own field nor as a `<think>` block in the text.

    Raises:
        ModelError: retryable, unless `max_tokens` cut the reply before its first word. Carries the reply's usage.
    """
    if reply.unusable is not None or reply.message.tool_calls:
        return
    if has_visible_text(split_thoughts(reply.message.content)[1]):
        return
    if reply.finish_reason == "length":
        error = ModelError(f"{info.name}: max_tokens cut the answer before its text: raise model_settings.max_tokens")
    else:
        thoughts = len(reply.message.reasoning.text) if reply.message.reasoning else 0
        only = f"only thoughts ({thoughts} characters), which may lack their end tag, " if thoughts else ""
        problem = f"the answer is empty: {only}no text and no tool calls"
        error = ModelError(f"{info.name}: {problem}", retryable=True)
    error.usage = reply.usage
    raise error.of_type("empty_answer")


def has_visible_text(text: str) -> bool:
    """Return whether any character is visible: spaces, control and zero-width characters do not count."""
    return any(char.isprintable() and not char.isspace() for char in text)
