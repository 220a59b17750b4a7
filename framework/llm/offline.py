"""The offline model behind `model: offline`: a rule-based stand-in, to try and test agents without an API key.

A request is split into clauses at "then" and 然后. Each clause calls the tool that shares most words with it, one
clause a turn; the types and names of a tool's parameters decide which quote, path, number or list fills which. The
model has no state: the results in the transcript show how far the request has progressed, and are the answer.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from framework.llm.client import Delta, ModelInfo, ModelReply, ModelRequest
from framework.types.errors import ModelError
from framework.types.messages import Message, ToolCall, ToolDefinition, Usage
from framework.types.plan import PlanDraft, StepDraft
from framework.types.text import shorten

_MAX_INPUT_CHARS = 20_000
"""Limit of a request and of a result. The rules need no more, and the time of some grows faster than the text."""
_LEXICON = {
    "search": "search, find, locate, grep, lookup, look for, look up, 搜索, 查找, 寻找, 检索, 查询",
    "read": "read, show, open, cat, view, display, look at, what is in, 读取, 查看, 打开, 阅读, 显示, 看看, 有什么",
    "calculate": "calculate, calculator, compute, evaluate, 计算, 算一下, 求和",
    "list": "list, ls, 列出, 列举",
    "analyze": "analyze, analyse, analysis, inspect, examine, 分析, 诊断",
    "echo": "echo, repeat, say, 回显, 重复, 复述",
    "write": "write, save, create, 写入, 保存, 创建, 新建",
    "delete": "delete, remove, erase, 删除, 移除, 清空",
    "send": "send, 发送",
    "fetch": "fetch, download, 下载, 抓取",
    "mean": "mean, average, avg, 平均, 均值",
    "max": "max, maximum, largest, highest, 最大, 最高",
    "min": "min, minimum, smallest, lowest, 最小, 最低",
    "sum": "sum, total, 总和, 求和, 之和, 合计",
    "median": "median, 中位数",
    "count": "count, how many, 统计, 数量, 多少个",
    "file": "file, document, 文件, 文档",
    "dir": "dir, directory, folder, repository, repo, 目录, 文件夹, 仓库",
    "log": "log, 日志",
    "error": "error, failure, 错误, 报错, 异常",
    "summary": "summary, summarize, summarise, overview, 摘要, 总结, 汇总",
    "tail": "tail, last, newest, latest, 末尾, 最后, 最近",
    "limit": "limit, at most, up to, 最多, 限制",
}
"""Words for comparison, each with its synonyms in English and Chinese."""
_TOOL_SEARCH = "tool_search"
"""The tool that finds further ones: it is called with each clause that no other tool fits, once."""
_RUN_SCRIPT, _SCRIPT = "run_script", "script:"
"""The tool that runs scripts: it is called with what follows this word in the request."""
_EFFECTS = frozenset({"write", "delete", "send"})
_ACTIONS = _EFFECTS | {"search", "read", "calculate", "list", "analyze", "echo", "fetch"}
_OPERATIONS = ("mean", "median", "sum", "min", "max", "count")
_STOP = re.compile(
    r"\b(?:a|about|agent|all|an|and|any|are|as|at|be|by|can|could|current|do|does|each|every|for|from|have|how|i|if|in|into"
    r"|is|its?|many|me|my|no|not|of|on|one|only|or|our|out|please|so|than|that|the|their|them|then|there|these|they|this"
    r"|those|to|tool|us|use|using|via|want|was|we|what|when|where|which|who|why|will|with|would|you|your)\b"
)
_KINDS = {
    "path": "path file filename dir root folder directory",
    "id": "id number code key",
    "expression": "expression expr formula",
    "text": "text message content body prompt question task note",
    "query": "query pattern keyword term search",
}
"""What a parameter of type string contains, by the words of its name."""
_CJK = re.compile(r"[\u3400-\u4dbf\u4e00-\u9fff]")
_NUMBER = re.compile(r"(?<![\w.])-?[0-9]{1,15}(?:\.[0-9]{1,15})?(?![A-Za-z_0-9]|\.[0-9])")
_QUOTED = re.compile(
    r"\"([^\"\n]+)\"|`([^`\n]+)`|“([^“”]+)”|「([^「」]+)」"
    r"|(?<![A-Za-z0-9])'((?:[^'\n]|(?<=[A-Za-z])'(?=[A-Za-z]))+)'(?![A-Za-z0-9])"
)
_BOUNDARY = re.compile(
    r"\b(?:and\s{1,9})?(?:then|after\s{1,9}that)\b|然后|接着|之后|(?<!不)再(?![见次一度现])"
    r"|(?:[,，;；。!！\n]|\.\s|\band\b|并且?)\s{0,9}(?=(?:please\s{1,9}|请)?(?:(?:search|find|look|read|open|show|calculate"
    r"|compute|echo|list|analy[sz]e)\b|搜索|查找|读取|打开|查看|计算|分析|列出|回显))",
    re.IGNORECASE,
)
_LIST = re.compile(r"\[[\s0-9.,，、;+\-]*[0-9][\s0-9.,，、;+\-]*\]")
_FILE_NAME = re.compile(r"(?:.*/)?(?:\.?[\w-][\w.-]*\.[A-Za-z]\w{0,7}|\.[A-Za-z][\w-]{2,})")
_FOLDER = re.compile(
    r"(?:\bfolder|\bdirectory|目录)\s{1,9}([\w.-]+)|(?<![\w.-])(?!(?:the|a|this)\b)([\w.-]{1,80})\s{1,9}(?:folder|directory|目录)",
    re.ASCII,
)
_FILES_OF = re.compile(r"(?<![\w.])(python|javascript|go|java|yaml|csv)\s{0,3}(?:files?\b|源?文件)", re.IGNORECASE)
_SUFFIXES = {"python": "py", "javascript": "js"}
_ARITHMETIC = re.compile(
    r"(?:(?<![0-9])[0-9]++(?:\.[0-9]++)?(?![A-Za-z0-9_])|[-+*/%()\[\],\s]"
    r"|\b(?:mean|median|sum|min|max|round|count|abs|sqrt)(?=\())+"
)
_OPERATOR = re.compile(r"[0-9)\]]\s*(?:\*\*|//|[-+*/%])\s*[-(0-9a-z]|[a-z]\(")
_REFERENCE = re.compile(
    r"\b(?:it|them|(?:that|this|the)\s+(?:first\s+)?(?:file|result|one|output|report|line)s?)\b"
    r"|它们?|[该这那]个?文件|第一个|结果|内容",
    re.IGNORECASE,
)
"""A reference to earlier results."""
_FILLER = (
    r"(?:[\s:：,，。.?？!！]|(?<![\w-])(?:for|all|any|the|an?|of|in|on|at|from|about|up|me|to|files?|that|which|contain(?:s|ing)?"
    r"|with|mention(?:s|ing)?|named|please|is|text|word)(?![\w-])|一下|一遍|包含|关于|名为|帮我|的?(?:文件|内容)|里面?|的|中)++"
)
_NEAR = 40
"""Characters searched for fillers at the end of a text, so that the time for long texts stays linear."""
_GREETING = re.compile(
    r"(?:hi|hello|hey|你好|您好)?[\s,.!，。！]{0,3}"
    r"(?:there|(?:what|how) can you (?:do|help)|who are you|help|你能做什么|你会什么|你是谁|帮助)?[\s.!?。！？]{0,3}",
    re.IGNORECASE,
)
_TRIES = {
    "calculator": "\n- try: calculate the mean of [1, 2, 3]",
    "search_files": "\n- try: search for files containing 'agent'",
    "list_dir": "\n- try: list the folder agents.d",
}
"""Messages that these rules understand, by the tool that they need."""
_HELLO = "Hello! I am a rule-based stand-in for a model, and can call {}.{}\nUse a real one with `-m openai/...`."
_LOST = (
    "This is the offline stand-in, and it knows no way to do this; {}. For a real model set OPENAI_API_KEY and"
    " write `model: openai/...`."
)
_FAILED = {"Denied": "was denied", "Cancelled": "was cancelled", "Error": "failed"}


def _stem(word: str) -> str:
    endings = r"(?<=[a-z]{2})ies$|(?<=[a-z]{2})y$|(?<=[a-z]{4})(?:ing|ed)$|(?<=[a-z][^sui])e?s$|(?<=[a-z]{3})e$"
    return re.sub(endings, "", word)


_FORMS = [(form, word) for word, forms in _LEXICON.items() for form in forms.split(", ")]
_WORD_OF = {_stem(form): word for form, word in _FORMS if form.isascii() and " " not in form}
_PHRASES = [(form, word) for form, word in _FORMS if not form.isascii() or " " in form]
_KIND_OF = {name: kind for kind, names in _KINDS.items() for name in names.split(" ")}


def _words(text: str) -> frozenset[str]:
    """Return the canonical words of a text, the stems of its other words, and its pairs of Chinese characters."""
    lower = re.sub(r"[_\-.]+", " ", re.sub(r"(?<=[a-z])(?=[A-Z])", " ", text)).lower()
    found = {_WORD_OF.get(_stem(word), _stem(word)) for word in re.findall(r"[a-z]+", _STOP.sub(" ", lower))}
    found.update(word for phrase, word in _PHRASES if phrase in lower)
    found.update(run[at : at + 2] for run in re.findall(rf"{_CJK.pattern}{{2,}}", lower) for at in range(len(run) - 1))
    return frozenset(word for word in found if len(word) > 1)


def _forms_of(text: str) -> str:
    """Return a pattern that matches every form of the words of a text, the longest first."""
    forms = {form for word in _words(text) for form in _LEXICON.get(word, word).split(", ")}
    patterns = (
        form if _CJK.search(form) else rf"\b{re.escape(form if ' ' in form else _stem(form))}(?:e?s?|e?d|y|ies|ing)\b"
        for form in sorted(forms, key=lambda form: (-len(form), form))
    )
    return "|".join(patterns) or r"(?!)"


class _Clause(NamedTuple):
    text: str
    plain: str
    """The text without its literals."""
    words: frozenset[str]
    hints: frozenset[str]
    """Words implied by the literals: the path of a log file implies `log` and `file`."""
    literals: Mapping[str, Sequence[str]]
    """By kind: `quote`, `path`, and `list` for lists of numbers such as `1,2,3`."""


def _clauses(text: str) -> list[_Clause]:
    """Split a request into clauses, never inside quotes."""
    masked = _QUOTED.sub(lambda match: "\0" * len(match[0]), text)
    cuts = [0, *(at for match in _BOUNDARY.finditer(masked) for at in match.span()), len(text)]
    parts = (text[start:end].strip(" \t\r\n,，;；、。") for start, end in zip(cuts[::2], cuts[1::2], strict=True))
    return [_parse(part) for part in parts if part]


def _parse(text: str) -> _Clause:
    quotes = [next(filter(None, match.groups())) for match in _QUOTED.finditer(text)]
    plain = _QUOTED.sub(" ", text)
    lists, plain = [",".join(_NUMBER.findall(found)) for found in _LIST.findall(plain)], _LIST.sub(" ", plain)
    tokens = (token.rstrip(".") for token in re.findall(r"(?<![@\w])[A-Za-z0-9_~./-]+", plain))
    paths = [token for token in (*quotes, *tokens) if _is_path(token)]
    folders = (before or after for before, after in _FOLDER.findall(plain))
    paths += [folder for folder in folders if _words(folder) - {"list", "dir", "file"}]
    for path in paths:
        plain = plain.replace(path, " ", 1)
    hints = set(_words(" ".join(paths).replace("/", " ")))
    if any(map(_FILE_NAME.fullmatch, paths)):
        hints.add("file")
    elif kind := _FILES_OF.search(plain):
        quotes.append(f"*.{_SUFFIXES.get(kind[1].lower(), kind[1].lower())}")
        plain = plain.replace(kind[1], " ", 1)
        hints |= {"search", "file"}
    words = _words(plain)
    asks = words <= {*_OPERATIONS, "round"} or re.search(r"what|how\s+much|多少|等于|=", plain.lower())
    if lists or (asks and re.search(r"[0-9]", plain)):
        hints.add("calculate")
    return _Clause(text, plain, words, frozenset(hints) - words, {"quote": quotes, "path": paths, "list": lists})


def _is_path(token: str) -> bool:
    is_word = not re.search(r"[^\W\d]", token) or re.search(r"\s", token) or token.lower() in ("and/or", "e.g", "i.e")
    return not is_word and ("/" in token or _FILE_NAME.fullmatch(token) is not None)


def _expressions(clause: _Clause, earlier: Sequence[str]) -> list[str]:
    """Return the expressions in a clause: those written out, or its operations applied to its lists.

    "The numbers" without a list are those in the latest result, without the positions of search results.
    """
    texts = (*clause.literals["quote"], clause.text)
    runs = [match[0].strip(" \t\r\n,") for text in texts for match in _ARITHMETIC.finditer(text)]
    runs = [run for run in runs if len(run) < 200 and run.count("(") == run.count(")")]
    if written := [run for run in runs if _OPERATOR.search(run) and run[0] not in "*/%"]:
        return list(dict.fromkeys(written))
    found = ((re.search(_forms_of(word), clause.plain, re.IGNORECASE), word) for word in _OPERATIONS)
    operations = [word for _, word in sorted((match.start(), word) for match, word in found if match)]
    lists = list(clause.literals["list"])
    if not lists and len(numbers := _NUMBER.findall(clause.plain)) > 1:
        lists = [",".join(numbers)]
    if not lists and earlier and re.search(r"\b(?:numbers?|values?)\b|数字|数值", clause.plain, re.IGNORECASE):
        without_positions = re.sub(r"(?m)^[^\s:]{1,300}:[0-9]{1,9}: ?|^[^\s:]{1,300}$", "", earlier[0])
        lists = [",".join(numbers[:100])] if (numbers := _NUMBER.findall(without_positions)) else []
    return [f"{word}([{numbers}])" for numbers in lists for word in operations]


class _Call:
    """A tool's arguments, filled from one clause; each literal is used once."""

    def __init__(self, tool: ToolDefinition, clause: _Clause, earlier: Sequence[str], expression: str) -> None:
        self._tool, self._clause, self._earlier, self._expression = tool, clause, earlier, expression
        self._rest, self._left = clause.plain, dict(clause.literals)
        self.used = self.options = 0
        """Numbers of literals and of choices in the arguments."""
        schemas = {name: _resolved(tool, spec) for name, spec in tool.parameters.get("properties", {}).items()}
        required = [name for name in tool.parameters.get("required", ()) if name in schemas]
        values: dict[str, Any] = {}
        # A choice comes last: if a pattern is found, `grep` is the right one.
        for name in sorted(schemas, key=lambda name: (name not in required, "enum" in schemas[name])):
            values[name] = self._value(name, schemas[name], name in required)
        for name in required:
            if values[name] is None and schemas[name].get("type") == "string":
                values[name] = self._rest_of_clause(name)
        self.is_complete = all(values[name] not in (None, "") for name in required)
        self.arguments = {name: values[name] for name in schemas if values[name] is not None}
        self.unused = len({literal for found in self._left.values() for literal in found})

    def _value(self, name: str, schema: Mapping[str, Any], required: bool) -> Any:
        """Return the value that the clause names for a parameter, or None."""
        kind, items = _kind(name), _resolved(self._tool, schema.get("items")).get("type")
        match schema.get("type"):
            case _ if options := [
                (option, _words(option)) for option in schema.get("enum", ()) if isinstance(option, str)
            ]:
                searches = ["search"] if len(self._left["quote"]) < len(self._clause.literals["quote"]) else []
                mentioned = (self._clause.words - _ACTIONS).union(searches)
                chosen = next((option for option, words in options if words and words <= mentioned), None)
                self.options += chosen is not None
                return chosen
            case "integer" | "number" as number if required:
                found = [one for one in _NUMBER.findall(self._rest) if number == "number" or "." not in one]
                self._rest = self._rest.replace(found[0], " ", 1) if found else self._rest
                return _number(found[0]) if found else None
            case "boolean" if required:
                return _words(name) <= self._clause.words
            case "array" if items == "string":
                return list(iter(lambda: self._take("quote"), None)) or None
            case "array":
                numbers = [*map(_number, _NUMBER.findall(self._take("list") or ""))]
                is_fitting = items != "integer" or all(isinstance(one, int) for one in numbers)
                return numbers if numbers and is_fitting else None
            case "string" if kind == "expression" and required:
                self._left["list"] = ()
                self.used += 1
                return self._expression
            case "string" if kind == "path":
                return self._take("path") or ((self._take("quote") or self._path_of_result()) if required else None)
            case "string" if required or kind in ("text", "query"):
                return self._take("quote")
        return None

    def _take(self, kind: str) -> str | None:
        literal = next(iter(self._left[kind]), None)
        if literal is not None:
            self._left = {kind: [one for one in found if one != literal] for kind, found in self._left.items()}
            self.used += 1
        return literal

    def _path_of_result(self) -> str | None:
        """Return the first path in the earlier results, if the clause refers to one."""
        names = re.findall(r"(?<![\w/.-])[A-Za-z0-9_./-]*\.[A-Za-z]\w{0,7}\b", "\n".join(self._earlier), re.ASCII)
        return next(filter(_FILE_NAME.fullmatch, names), None) if _REFERENCE.search(self._rest) else None

    def _rest_of_clause(self, name: str) -> str:
        """Return the text that is no literal, for a required parameter; empty if nothing is left."""
        match _kind(name):
            case "path" | "expression":
                return ""
            case "text":
                self.used += sum(map(len, self._left.values()))
                self._left = {}
                text = self._clause.text
                text = text if self._tool.name.startswith("agent.") else self._after_verb(text)
                return re.sub(r"^(?:[\s:：,，]|一[下遍])+", "", text)
            case "id" if number := re.search(r"(?<!\w)[A-Za-z_-]{0,40}[0-9][\w-]*", self._rest, re.ASCII):
                return number[0]
        text, self._rest = _bare(self._after_verb(self._rest)), ""
        own = re.match(_forms_of(name), text, re.IGNORECASE)
        return (_bare(text[own.end() :]) if own else "") or text

    def _after_verb(self, text: str) -> str:
        """Return the text after the word that the tool is named after, or the text before it if nothing follows."""
        verb = re.search(_forms_of(self._tool.name), text, re.IGNORECASE)
        if verb is None:
            return text
        return after if re.search(r"\w", after := text[verb.end() :]) else text[: verb.start()]


def _number(text: str) -> int | float:
    return float(text) if "." in text else int(text)  # JSON has no number such as 007


def _bare(text: str) -> str:
    """Return the text without filler words at its ends."""
    text = re.sub(rf"\A{_FILLER}", "", text)
    text = text[:-_NEAR] + re.sub(rf"{_FILLER}\Z", "", text[-_NEAR:])
    return text if re.search(r"\w", text) else ""


def _kind(name: str) -> str:
    parts = reversed(re.findall(r"[A-Z]?[a-z]+", name))
    return next((_KIND_OF[part.lower()] for part in parts if part.lower() in _KIND_OF), "")


def _resolved(tool: ToolDefinition, spec: Any) -> dict[str, Any]:
    """Return a schema with its references resolved, as its first alternative that is not null."""
    for _ in range(5):
        spec = spec if isinstance(spec, dict) else {}
        if inner := spec.get("anyOf") or spec.get("oneOf") or spec.get("allOf"):
            spec = next((one for one in inner if isinstance(one, dict) and one.get("type") != "null"), {})
        elif isinstance(reference := spec.get("$ref"), str):
            spec = tool.parameters.get("$defs", {}).get(reference.rpartition("/")[2], {})
    kinds = spec.get("type")
    return {**spec, "type": next((k for k in kinds if k != "null"), None)} if isinstance(kinds, list) else dict(spec)


def _pick(clause: _Clause, tools: Sequence[ToolDefinition], earlier: Sequence[str]) -> list[tuple[str, dict[str, Any]]]:
    """Return the calls of the tool that matches a clause best (the first of a tie), or none below the threshold.

    `earlier` are results of tools, the latest first, for references such as "read it".
    """
    shared = Counter(word for tool in tools for word in _words(tool.name))
    best, calls = (2.0, -1), list[tuple[str, dict[str, Any]]]()
    for tool in tools:
        needs_expression = "expression" in map(_kind, tool.parameters.get("required", ()))
        texts = _expressions(clause, earlier) if needs_expression else [""]
        filled = [call for text in texts if (call := _Call(tool, clause, earlier, text)).is_complete]
        if filled and (score := _score(tool, filled[0], clause, shared)) > best:
            best, calls = score, [(tool.name, call.arguments) for call in filled]
    return calls


def _score(tool: ToolDefinition, call: _Call, clause: _Clause, shared: Mapping[str, int]) -> tuple[float, int]:
    """Return how well a tool matches, and how many words of its name the clause contains."""
    own, is_agent, mentioned = _words(tool.name), tool.name.startswith("agent."), clause.words | clause.hints
    properties: dict[str, Any] = tool.parameters.get("properties", {})
    options = (str(o) for spec in properties.values() if isinstance(spec, dict) for o in spec.get("enum") or ())
    verb = re.match(r"\W*([A-Za-z]+|[\u4e00-\u9fff]{2})", tool.description)
    weights = dict.fromkeys(_words(" ".join([*properties, *options])) - _ACTIONS, 1.0)
    weights |= dict.fromkeys(_words(tool.description[:200]), 2.0 if is_agent else 1.0)
    weights |= dict.fromkeys(_words(verb[0] if verb else ""), 2.0)
    # A noun in the names of many tools (file) is weak evidence; a verb (search) is strong, however many share it.
    weights |= {word: 3.0 / (1 if word in _ACTIONS else shared[word]) for word in own}
    hits, named = mentioned & weights.keys(), own & mentioned
    score = sum(weights[word] for word in sorted(hits))
    if is_agent:
        asked = own <= clause.words and re.search(r"\b(?:ask|tell|let|have|agent)\b|让|问|交给|请", clause.text.lower())
        return score + (6.0 if asked else 0.0), len(named)
    if not any(word in own or weights[word] > 1 for word in hits):
        return 0.0, 0
    if len(own) > 2 and named == own:  # a long name, of which each word is mentioned, among many that are similar
        score += 2
    unknown = (clause.words & _ACTIONS) - weights.keys()
    score -= len(unknown) + len(unknown & _EFFECTS)
    return score + 1.5 * call.used - call.unused + (2.0 * call.options if named else 0.0), len(named)


class _Turn(NamedTuple):
    """The state of a request, from the transcript."""

    text: str
    calls: Sequence[ToolCall]
    answered: Sequence[tuple[ToolCall | None, str]]
    """Its calls with their results, without searches for tools."""
    earlier: Sequence[str]
    """Results of earlier requests, the latest first."""
    instruction: str
    """The instruction after the request, if it is the last message."""
    files: Sequence[str]
    """Descriptions of the files of the request and its results."""

    @classmethod
    def read(cls, messages: Sequence[Message]) -> _Turn:
        start = max((at for at, message in enumerate(messages) if message.role == "user"), default=len(messages))
        before, after = messages[:start], messages[start:]
        calls = {call.id: call for message in after for call in message.tool_calls}
        results = [(calls.get(m.tool_call_id or ""), m.content) for m in after if m.role == "tool"]
        return cls(
            text=after[0].content.strip()[:_MAX_INPUT_CHARS] if after else "",
            calls=[*calls.values()],
            answered=[(call, text) for call, text in results if call is None or call.tool != _TOOL_SEARCH],
            earlier=[m.content[:_MAX_INPUT_CHARS] for m in reversed(before) if m.role == "tool"],
            instruction=after[-1].content if after and after[-1].role in ("system", "user") else "",
            files=[part.description for message in after for part in message.media],
        )

    def clauses(self, tools: Sequence[ToolDefinition]) -> Iterator[tuple[_Clause, list[tuple[str, dict[str, Any]]]]]:
        """Yield each clause with the calls of the tool that matches it."""
        position = 0
        for clause in _clauses(self.text):
            results = [content for _, content in reversed(self.answered[:position])]
            calls = _pick(clause, tools, [*results, *self.earlier])
            yield clause, calls
            position += len(calls)

    def next_calls(self, tools: Sequence[ToolDefinition]) -> list[tuple[str, dict[str, Any]]]:
        """Return what to call next; none if each clause has its results."""
        if script := self.script(tools):
            return [] if self.answered else [(_RUN_SCRIPT, {"code": script})]
        clauses = list(self.clauses([tool for tool in tools if tool.name != _TOOL_SEARCH]))
        if any(tool.name == _TOOL_SEARCH for tool in tools) and not _GREETING.fullmatch(self.text):
            searched = [call.arguments.get("words") for call in self.calls]
            for clause, calls in clauses:
                if clause.words and not calls and clause.text not in searched:
                    return [(_TOOL_SEARCH, {"words": clause.text})]
        done = len(self.answered)
        for _, calls in clauses:
            if len(calls) > done:
                return calls[done:]
            done -= len(calls)
        return []

    def script(self, tools: Sequence[ToolDefinition]) -> str:
        """Return the script in the request, if one can be run."""
        return self.text.partition(_SCRIPT)[2].strip() if any(one.name == _RUN_SCRIPT for one in tools) else ""


class OfflineModel:
    """A model that follows rules: the same request always returns the same reply."""

    info = ModelInfo(provider="offline", model="", typed=True, stand_in=True)

    async def stream(self, request: ModelRequest) -> AsyncIterator[Delta]:
        """Answer, call matching tools, or plan; raise ModelError for typed answers other than plans and routes."""
        turn, choice = _Turn.read(request.messages), request.settings.tool_choice
        tools = [tool for tool in request.tools if choice in (None, "auto", "required", tool.name)]
        calls: tuple[ToolCall, ...] = ()
        if request.output is not None:
            text = _typed(request.output, turn, request.messages, tools)
        else:
            numbered = enumerate(turn.next_calls(tools), start=len(turn.calls) + 1)
            calls = tuple(ToolCall(id=f"call_{at}", tool=tool, arguments=values) for at, (tool, values) in numbered)
            text = "" if calls else _answer(turn, tools)
        if request.stream:
            for piece in re.findall(r"[^\s\u4e00-\u9fff]+\s*|[\u4e00-\u9fff]{1,2}\s*|\s+", text):
                yield Delta(text=piece)
                await asyncio.sleep(0)  # as a network would, let readers run between two deltas
        message = Message(role="assistant", content=text, tool_calls=calls)
        prompt, completion = sum(map(_tokens, request.messages)), _tokens(message)
        usage = Usage(prompt_tokens=prompt, completion_tokens=completion, total_tokens=prompt + completion)
        yield Delta(reply=ModelReply(message, "tool_calls" if calls else "stop", usage, model="offline"))

    async def close(self) -> None:
        """Do nothing: there is no connection."""


def _tokens(message: Message) -> int:
    arguments = sum(len(call.tool) + len(_text(call.arguments)) for call in message.tool_calls)
    return max(1, (len(message.content) + arguments) // 4)


def _answer(turn: _Turn, tools: Sequence[ToolDefinition]) -> str:
    """Return the results as sentences, with the clauses that no tool fits, or an introduction without results."""
    tools = [tool for tool in tools if tool.name != _TOOL_SEARCH]
    listed = re.search(r"^\s*(?:[-*]|[0-9]+[.)])\s.*\Z", turn.instruction, re.MULTILINE | re.DOTALL)
    if turn.answered:
        lines = [_sentence(call, content, len(turn.answered) == 1) for call, content in turn.answered]
        clauses = turn.clauses(tools) if tools and not turn.script(tools) else ()
        lost = (clause.text for clause, calls in clauses if not calls and clause.words & _ACTIONS)
        lines += [f"{text}: no tool fits" for text in lost]
        text = lines[0] if len(lines) == 1 else "\n".join(f"- {line}" for line in lines)
    else:
        text = listed[0].strip() if listed and not tools else _introduction(turn.text, tools)
    files = f"(files received, which the offline model cannot read: {', '.join(turn.files)})" if turn.files else ""
    return f"{text}\n\n{files}".strip()


def _sentence(call: ToolCall | None, content: str, alone: bool) -> str:
    arguments, result = call.arguments if call else {}, shorten(content.strip(), 600)
    shown = ", ".join(shorten(_text(value), 60) for value in arguments.values())
    label = arguments.get("expression") or (f"{call.tool}({shown})" if call else "tool")
    if failed := re.match(r"(Error|Denied|Cancelled)\b:?\s*", result):
        return f"{label} {_FAILED[failed[1]]}: {result[failed.end() :]}"
    if re.match(
        r"(?:no\b.{0,20}\b(?:match\w*|found|files?|results?)\b|(?:null|None|\[\]|\{\})?\Z)", result, re.IGNORECASE
    ):
        return f"Nothing was found ({label})."
    if alone:
        return result
    return (
        f"{label} = {result}"
        if "expression" in arguments
        else f"{label}:{chr(10) if chr(10) in result else ' '}{result}"
    )


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def _introduction(text: str, tools: Sequence[ToolDefinition]) -> str:
    names = [tool.name for tool in tools[:6]]
    listed = ", ".join(names) + (" and others" if len(tools) > len(names) else "")
    if names and _GREETING.fullmatch(text):
        return _HELLO.format(listed, "".join(_TRIES.get(name, "") for name in names))
    return _LOST.format(f"by its rules it can call {listed}" if names else "it has been offered no tools")


def _typed(output: type[Any], turn: _Turn, messages: Sequence[Message], tools: Sequence[ToolDefinition]) -> str:
    fields = output.model_json_schema().get("properties", {}).keys()
    if {"goal", "steps"} <= fields:
        return _plan(turn, tools).model_dump_json()
    if not {"agent", "executor"} <= fields:
        raise ModelError(f"the offline model answers only plans and routes: {output.__name__} needs a real model")
    system = "\n".join(message.content for message in messages if message.role == "system")
    listed = re.findall(r"^- ([a-z][a-z0-9_-]*): (.*)$", system, re.MULTILINE)
    shared = {name: sorted(_words(turn.text) & _words(f"{about} {name}")) for name, about in listed}
    agent = max(shared, key=lambda name: len(shared[name]), default="")
    hits = shared.get(agent, [])
    executor = "plan" if len(_clauses(turn.text)) > 1 else "react"
    reason = f"it is about {', '.join(hits)}" if hits else "nothing else is known of it"
    confidence = 1.0 if len(shared) == 1 else round(len(hits) / (len(hits) + 1), 2)
    return json.dumps({"agent": agent, "executor": executor, "reason": reason, "confidence": confidence})


def _plan(turn: _Turn, tools: Sequence[ToolDefinition]) -> PlanDraft:
    """Return a plan of the steps that are not done: those of a clause in parallel, each after the previous clause.

    A failed step gets the name that its error suggests, or is left out with the steps that need its result.
    """
    states = dict(re.findall(r"^- (\S+?) ?[(（](\w+)[)）]", turn.instruction, re.MULTILINE))
    steps, left_out = list[StepDraft](), set[str]()
    for step in _steps(turn, tools):
        attempt = _corrected(step, turn) if states.get(step.id) == "failed" else step
        if attempt is None or left_out & set(re.findall(r"steps\.(\w+)\.output", str(attempt.parameters))):
            left_out.add(step.id)
        elif states.get(step.id) != "done":
            needed = tuple(other for other in step.depends_on if other not in left_out)
            steps.append(attempt.model_copy(update={"depends_on": needed}))
    return PlanDraft(goal=turn.text, steps=tuple(steps))


def _steps(turn: _Turn, tools: Sequence[ToolDefinition]) -> list[StepDraft]:
    """Return the steps for all clauses; a log is analyzed in the first three modes of its tool."""
    clauses = [(clause, _pick(clause, tools, ())) for clause in _clauses(turn.text)]
    if not any(calls for _, calls in clauses):
        return [StepDraft(id="s1", description=turn.text)]
    steps, previous = list[StepDraft](), tuple[str, ...]()
    for clause, calls in clauses:
        drafts: list[tuple[str | None, dict[str, Any]]] = [*calls] or [(None, {})]
        if "analyze" in clause.words and [name for name, values in calls if "operation" not in values]:
            tool = next(tool for tool in tools if tool.name == calls[0][0])
            modes = _resolved(tool, tool.parameters.get("properties", {}).get("operation")).get("enum", ())
            drafts = [(tool.name, {**calls[0][1], "operation": mode}) for mode in modes[:3]] or drafts
        outputs = "\n\n".join(f"{{{{ steps.{name}.output }}}}" for name in previous)
        refers = outputs and not clause.literals["quote"] and _REFERENCE.search(clause.text)
        step_ids = tuple(f"s{len(steps) + number}" for number in range(1, len(drafts) + 1))
        for step_id, (name, values) in zip(step_ids, drafts, strict=True):
            about = f"{clause.text}: {list(values.values())[-1]}" if len(drafts) > 1 else clause.text
            filled = {key: outputs if refers and _kind(key) == "text" else value for key, value in values.items()}
            steps.append(StepDraft(id=step_id, description=about, tool=name, parameters=filled, depends_on=previous))
        previous = step_ids
    return steps


def _corrected(step: StepDraft, turn: _Turn) -> StepDraft | None:
    """Return a failed step with the name that its error suggests, or None if it suggests none."""
    for call, error in turn.answered:
        suggestion = re.search(r"there is no \w+ '([^']+)'; did you mean ([^,?]+)", error)
        if call and suggestion and (call.tool, call.arguments) == (step.tool, step.parameters):
            wrong, right = suggestion[1], suggestion[1][: suggestion[1].rfind("/") + 1] + suggestion[2].strip()
            texts = {name: value for name, value in step.parameters.items() if isinstance(value, str)}
            corrected = {name: text.replace(wrong, right, 1) for name, text in texts.items()}
            return step.model_copy(update={"parameters": {**step.parameters, **corrected}})
    return None
