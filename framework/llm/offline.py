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
from dataclasses import dataclass
from typing import Any

from framework.llm.client import Delta, ModelInfo, ModelReply, ModelRequest
from framework.types.errors import ModelError
from framework.types.messages import Message, ToolCall, ToolDefinition, Usage
from framework.types.plan import PlanDraft, StepDraft

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
    "warning": "warning, warn, 警告, 告警",
    "level": "level, severity, 级别",
    "summary": "summary, summarize, summarise, overview, 摘要, 总结, 汇总",
    "tail": "tail, last, newest, latest, 末尾, 最后, 最近",
    "limit": "limit, at most, up to, 最多, 限制",
}
"""Words for comparison, each with its synonyms in English and Chinese."""
_THRESHOLD, _IN_NAME = 2.0, 3.0
_TOOL_SEARCH = "tool_search"
"""The tool that finds further ones: it is called with each clause that no other tool fits, once."""
_RUN_SCRIPT, _SCRIPT = "run_script", "script:"
"""The tool that runs scripts: it is called with what follows this word in the request."""
_EFFECTS = frozenset({"write", "delete", "send"})
_ACTIONS = _EFFECTS | {"search", "read", "calculate", "list", "analyze", "echo", "fetch"}
_OPERATIONS = ("mean", "median", "sum", "min", "max", "count")
_STOP = frozenset(
    re.findall(
        r"\w+",
        "a about agent all an and any are as at be by can could current do does each every for from have how i if "
        "in into is it its many mcp me my no not of on one only or our out please skill so than that the their "
        "them then there these they this those to tool us use using via want was we what when where which who why "
        "will with would you your",
    )
)
_CJK = re.compile(r"[\u3400-\u4dbf\u4e00-\u9fff]")
_NUMBER = re.compile(r"(?<![\w.])-?[0-9]{1,15}(?:\.[0-9]{1,15})?(?![A-Za-z_0-9]|\.[0-9])")
_QUOTED = re.compile(
    r"\"([^\"\n]+)\"|`([^`\n]+)`|“([^“”]+)”|‘([^‘’]+)’|「([^「」]+)」|『([^『』]+)』"
    r"|(?<![A-Za-z0-9])'((?:[^'\n]|(?<=[A-Za-z])'(?=[A-Za-z]))+)'(?![A-Za-z0-9])"
)
_BOUNDARY = re.compile(
    r"\b(?:and\s{1,9})?(?:then|after\s{1,9}that)\b|然后|接着|之后|(?<!不)再(?![见次一度现])"
    r"|(?:[,，;；。!！\n]|\.\s|\band\b|并且?)\s{0,9}(?=(?:please\s{1,9}|请)?(?:(?:search|find|look|read|open|show|calculate"
    r"|compute|echo|list|analy[sz]e)\b|搜索|查找|读取|打开|查看|计算|分析|列出|回显))",
    re.IGNORECASE,
)
_URL = re.compile(r"https?://[^\s，。；、）)\"'<>\u4e00-\u9fff]+")
_LIST = re.compile(r"\[[\s0-9.,，、;+\-]*[0-9][\s0-9.,，、;+\-]*\]")
_FILE_NAME = re.compile(r"(?:.*/)?(?:\.?[\w-][\w.-]*\.[A-Za-z]\w{0,7}|\.[A-Za-z][\w-]{2,})")
_NAMED_FOLDER = re.compile(
    r"\b(?:directory|folder)\s+([\w.-]+)|(?<![\w.-])(?!(?:the|a|this)\b)([\w.-]{1,80})\s{0,9}(?:\bdirectory|\bfolder|目录|文件夹)",
    re.IGNORECASE | re.ASCII,
)
_FILES_OF = re.compile(r"(?<![\w.])([A-Za-z]{1,12})\s{0,3}(?:files?\b|源?文件)", re.IGNORECASE)
_SUFFIXES = {"python": "py", "javascript": "js", "typescript": "ts", "rust": "rs", "markdown": "md"}
_SUFFIXES |= {name: name for name in ("go", "java", "c", "sh", "yaml", "json", "csv", "sql", "html", "css")}
_ARITHMETIC = re.compile(
    r"(?:(?<![0-9])[0-9]++(?:\.[0-9]++)?(?![A-Za-z0-9_])|[-+*/%()\[\],\s]"
    r"|\b(?:mean|median|sum|min|max|round|count|abs|sqrt)(?=\())+"
)
_OPERATOR = re.compile(r"[0-9)\]]\s*(?:\*\*|//|[-+*/%])\s*[-(0-9a-z]|[a-z]\(")
_DATE = re.compile(r"\b[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}\b")


def _stem(word: str) -> str:
    word = re.sub(r"(?<=[a-z]{2})ies$", "y", word)
    word = re.sub(r"(?<=[a-z]{2}[^sui])s$", "", word)
    return re.sub(r"(?<=[a-z]{3})e$", "", re.sub(r"(?<=[a-z]{4})(?:ing|ed)$", "", word))


_FORMS = [(form, word) for word, forms in _LEXICON.items() for form in forms.split(", ")]
_WORD_OF = {_stem(form): word for form, word in _FORMS if form.isascii() and " " not in form}
_PHRASES = [(form, word) for form, word in _FORMS if not form.isascii() or " " in form]


def _words(text: str) -> frozenset[str]:
    """Return the canonical words of a text, the stems of its other words, and its pairs of Chinese characters."""
    lower = re.sub(r"[_\-.]+", " ", re.sub(r"(?<=[a-z])(?=[A-Z])", " ", text)).lower()
    found = {_WORD_OF.get(_stem(word), _stem(word)) for word in re.findall(r"[a-z]+", lower) if word not in _STOP}
    found.update(word for phrase, word in _PHRASES if phrase in lower)
    found.update(run[at : at + 2] for run in re.findall(rf"{_CJK.pattern}{{2,}}", lower) for at in range(len(run) - 1))
    return frozenset(word for word in found if len(word) > 1 and word not in _STOP)


def _word_pattern(names: frozenset[str]) -> re.Pattern[str]:
    """Return a pattern that matches every form of the words."""
    forms = sorted(
        {form for name in names for form in _LEXICON.get(name, name).split(", ")}, key=lambda f: (-len(f), f)
    )
    ends = r"(?:e?s?|e?d|ing)\b"
    patterns = (f if _CJK.search(f) else rf"\b{re.escape(f if ' ' in f else _stem(f))}{ends}" for f in forms)
    return re.compile("|".join(patterns) or r"(?!)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class _Clause:
    """A clause of a request."""

    text: str
    plain: str
    """The text without its literals."""
    words: frozenset[str]
    hints: frozenset[str]
    """Words implied by the literals: the path of a log file implies `log` and `file`."""
    literals: Mapping[str, Sequence[str]]
    """By kind: `quote`, `path`, `url`, and `list` for lists of numbers such as `1,2,3`."""


def _clauses(text: str) -> list[_Clause]:
    """Split a request into clauses, never inside quotes."""
    masked = _QUOTED.sub(lambda match: "\0" * len(match[0]), text)
    cuts = [0, *(at for match in _BOUNDARY.finditer(masked) for at in match.span()), len(text)]
    parts = (text[start:end].strip(" \t\r\n,，;；、。") for start, end in zip(cuts[::2], cuts[1::2], strict=True))
    return [_parse(part) for part in parts if part]


def _parse(text: str) -> _Clause:
    quoted = [next(filter(None, match.groups())) for match in _QUOTED.finditer(text)]
    plain = _QUOTED.sub(" ", text)
    urls, plain = _URL.findall(plain), _URL.sub(" ", plain)
    lists = [",".join(_NUMBER.findall(found)) for found in _LIST.findall(plain)]
    plain, paths = _LIST.sub(" ", plain), [quote for quote in quoted if _is_path(quote)]
    for path in (match[0].rstrip(".") or match[0] for match in re.finditer(r"(?<![@\w])[A-Za-z0-9_~./-]+", plain)):
        if _is_path(path):
            paths.append(path)
            plain = plain.replace(path, " ", 1)
    for match in _NAMED_FOLDER.finditer(plain):
        if _words(name := match[1] or match[2]) - {"list", "dir", "file"}:
            paths.append(name)
            plain = plain.replace(match[0], match[0].replace(name, " "), 1)
    hints = set(_words(" ".join(paths).replace("/", " ")))
    if any(map(_FILE_NAME.fullmatch, paths)):
        hints.add("file")
    elif (kind := _FILES_OF.search(plain)) and (suffix := _SUFFIXES.get(kind[1].lower())):
        quoted.append(f"*.{suffix}")
        plain = plain.replace(kind[1], " ", 1)
        hints |= {"search", "file"}
    words = _words(plain)
    asks = words <= {*_OPERATIONS, "round", "abs", "sqrt"} or re.search(r"what|how\s+much|多少|等于|=", plain.lower())
    if lists or (asks and re.search(r"[0-9]", plain)):
        hints.add("calculate")
    literals = {"quote": quoted, "path": paths, "url": urls, "list": lists}
    return _Clause(text, plain, words, frozenset(hints) - words, literals)


def _is_path(token: str) -> bool:
    if not re.search(r"[^\W\d]", token) or re.search(r"\s", token) or token.lower() in ("and/or", "e.g", "i.e"):
        return False
    return "/" in token or _FILE_NAME.fullmatch(token) is not None


def _expressions(clause: _Clause, earlier: Sequence[str]) -> list[str]:
    """Return the expressions in a clause: those written out, or its operations applied to its lists.

    "The numbers" without a list are those in the latest result, without the positions of search results.
    """
    texts = (_DATE.sub(" ", text) for text in (*clause.literals["quote"], clause.text))
    runs = (match[0].strip(" \t\r\n,") for text in texts for match in _ARITHMETIC.finditer(text))
    written = [
        r for r in runs if len(r) < 200 and _OPERATOR.search(r) and r[0] not in "*/%" and r.count("(") == r.count(")")
    ]
    if written:
        return list(dict.fromkeys(written))
    found = {word: _word_pattern(frozenset({word})).search(clause.plain) for word in _OPERATIONS}
    operations = [word for _, word in sorted((match.start(), word) for word, match in found.items() if match)]
    lists = list(clause.literals["list"])
    if not lists and len(loose := _NUMBER.findall(clause.plain)) > 1:
        lists = [",".join(loose)]
    if not lists and earlier and re.search(r"\b(?:numbers?|values?)\b|数字|数值", clause.plain, re.IGNORECASE):
        without_positions = re.sub(r"(?m)^[^\s:]{1,300}:[0-9]{1,9}: ?|^[^\s:]{1,300}$", "", earlier[0])
        lists = [",".join(numbers[:100])] if (numbers := _NUMBER.findall(without_positions)) else []
    return [f"{word}([{numbers}])" for numbers in lists for word in operations]


_Filled = tuple[str, dict[str, Any]]
"""A tool's name and the arguments of its call."""
_KINDS = {
    "path": "path file filename",
    "folder": "dir root folder directory",
    "url": "url uri link",
    "id": "id number code key",
    "expression": "expression expr formula",
    "text": "text message content body prompt question task note",
    "query": "query pattern keyword term search",
}
"""What a parameter of type string contains, by the words of its name."""
_KIND_OF = {name: kind for kind, names in _KINDS.items() for name in names.split(" ")}
_QUANTITIES = frozenset({"max", "limit", "count", "num", "size", "top"})
_COUNTED = _words("results, hits, matches, entries, lines, items, rows")
_NEAR = 40
"""Characters searched around a word, so that the time for long texts stays linear."""
_REFERENCE = re.compile(
    r"\b(?:it|them|(?:that|this|the)\s+(?:first\s+)?(?:file|result|one))\b|它|[该这那]个?文件|第一个", re.I
)
_FILLER = (
    r"(?:[\s:：,，。.?？!！]|(?<![\w-])(?:for|all|any|the|an?|of|in|on|at|from|about|up|me|to|files?|that|which|contain(?:s|ing)?"
    r"|with|mention(?:s|ing)?|named|please|is|text|word)(?![\w-])|一下|一遍|包含|关于|名为|帮我|的?(?:文件|内容)|里面?|的|中)++"
)
_FILLER_BEFORE, _FILLER_AFTER = re.compile(rf"\A{_FILLER}"), re.compile(rf"{_FILLER}\Z")


def _bare(text: str) -> str:
    """Return the text without filler words at its ends."""
    text = _FILLER_BEFORE.sub("", text)
    text = text[:-_NEAR] + _FILLER_AFTER.sub("", text[-_NEAR:])
    return text if re.search(r"\w", text) else ""


def _parts(name: str) -> list[str]:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower().replace("-", "_").split("_")


class _Call:
    """A tool's arguments, filled from one clause; each literal is used once."""

    def __init__(self, tool: ToolDefinition, clause: _Clause, earlier: Sequence[str], expression: str) -> None:
        self.tool, self.clause, self.earlier, self.expression = tool, clause, earlier, expression
        self.rest, self.used, self.options = clause.plain, set[str](), 0
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
        literals = {literal for group in clause.literals.values() for literal in group}
        self.unused = 0 if clause.text in self.used else max(0, len(literals) - len(self.used))

    def _value(self, name: str, schema: Mapping[str, Any], required: bool) -> Any:
        """Return the value that the clause names for a parameter, or None."""
        if options := schema.get("enum"):
            return self._option([option for option in options if isinstance(option, str)])
        match schema.get("type"):
            case "integer" | "number":
                return self._number(name, schema["type"] == "integer", required)
            case "boolean":
                return (_words(name) <= self.clause.words) or (False if required else None)
            case "array":
                return self._list(_resolved(self.tool, schema.get("items", {})).get("type"))
            case "string":
                return self._string(_kind(name), required)
        return None

    def _string(self, kind: str, required: bool) -> str | None:
        match kind:
            case "expression":
                self.used.update(self.clause.literals["list"], [self.expression])
                return self.expression if required else None
            case "url":
                return self._unused("url")
            case "path" | "folder":
                path = self._unused("path", folder=kind == "folder")
                return path or (self._unused("quote") or self._path_of_result() if required else None)
        return self._unused("quote") if required or kind in ("text", "query") else None

    def _path_of_result(self) -> str | None:
        """Return the first path in the earlier results, if the clause refers to one."""
        names = re.findall(r"(?<![\w/.-])[A-Za-z0-9_./-]*\.[A-Za-z]\w{0,7}\b", "\n".join(self.earlier), re.ASCII)
        return next(filter(_FILE_NAME.fullmatch, names), None) if _REFERENCE.search(self.rest) else None

    def _unused(self, kind: str, *, folder: bool = False) -> str | None:
        literals = (one for one in self.clause.literals[kind] if not folder or not _FILE_NAME.fullmatch(one))
        literal = next((literal for literal in literals if literal not in self.used), None)
        self.used.update([literal] if literal else ())
        return literal

    def _option(self, options: Sequence[str]) -> str | None:
        searches = not self.used.isdisjoint(self.clause.literals["quote"])
        words = (self.clause.words - _ACTIONS) | ({"search"} if searches else set())
        chosen = next((option for option in options if _words(option) and _words(option) <= words), None)
        self.options += chosen is not None
        return chosen

    def _number(self, name: str, whole: bool, required: bool) -> int | float | None:
        numbers = [number for number in _NUMBER.finditer(self.rest) if not whole or "." not in number[0]]
        named = (number for number in numbers if _is_named(name, self.rest, number))
        match = next(named, numbers[0] if required and numbers else None)
        if match is None:
            return None
        before = re.sub(r"(?:limit|max)[\s:=]{0,9}$", "", self.rest[: match.start()])
        self.rest = f"{before} {self.rest[match.end() :]}"
        return int(match[0]) if whole or "." not in match[0] else float(match[0])

    def _list(self, items: str | None) -> list[Any] | None:
        if items == "string":
            quoted = [quote for quote in self.clause.literals["quote"] if quote not in self.used]
            self.used.update(quoted)
            return quoted or None
        numbers = (self._unused("list") or "").split(",") if items in ("integer", "number") else [""]
        read = int if all(number.lstrip("-").isdecimal() for number in numbers) else float
        return [read(number) for number in numbers] if numbers != [""] and (read is int or items == "number") else None

    def _rest_of_clause(self, name: str) -> str:
        """Return the text that is no literal, for a required parameter; empty if nothing is left."""
        match _kind(name):
            case "path" | "folder" | "url" | "expression":
                return ""
            case "text":
                self.used.add(self.clause.text)
                text = self.clause.text if self.tool.name.startswith("agent.") else self._after_verb(self.clause.text)
                return re.sub(r"^(?:\s|[:：,，]|一下|一遍)+", "", text).strip(" :：")
            case "id":
                number = re.search(r"(?<![\w])[#A-Za-z_-]{0,40}[0-9][\w-]*", self.rest, re.ASCII)
                self.rest = self.rest.replace(number[0], " ", 1) if number else self.rest
                return number[0].lstrip("#") if number else ""
        text, self.rest = _bare(self._after_verb(self.rest)), ""
        own = _word_pattern(_words(name)).match(text)
        return (_bare(text[own.end() :]) if own else "") or text

    def _after_verb(self, text: str) -> str:
        """Return the text after the word that the tool is named after, or the text before it if nothing follows."""
        verb = _word_pattern(_words(self.tool.name)).search(text)
        if verb is None or re.search(r"\w", after := text[verb.end() :]):
            return after if verb else text
        return text[: verb.start()]


def _kind(name: str) -> str:
    return next((_KIND_OF[part] for part in reversed(_parts(name)) if part in _KIND_OF), "")


def _resolved(tool: ToolDefinition, spec: Any) -> dict[str, Any]:
    """Return a schema with its references resolved, as its first alternative that is not null."""
    for _ in range(5):
        spec = spec if isinstance(spec, dict) else {}
        if inner := next((spec[key] for key in ("anyOf", "oneOf", "allOf") if spec.get(key)), None):
            spec = next((one for one in inner if isinstance(one, dict) and one.get("type") != "null"), {})
        elif isinstance(reference := spec.get("$ref"), str):
            spec = tool.parameters.get("$defs", {}).get(reference.rpartition("/")[2], {})
    kinds = spec.get("type")
    return {**spec, "type": next((k for k in kinds if k != "null"), None)} if isinstance(kinds, list) else dict(spec)


def _is_named(name: str, text: str, number: re.Match[str]) -> bool:
    """Return whether the word before a number, or for a quantity the one after it, names the parameter."""
    own, is_quantity = _words(name), not _QUANTITIES.isdisjoint(_parts(name))
    before = re.search(r"(\S+)[\s:=]*$", text[max(0, number.start() - _NEAR) : number.start()])
    after = re.match(r"\s*(行|[A-Za-z]+)", text[number.end() :]) if is_quantity else None
    unit = _words(after[1].replace("行", "line")) if after else frozenset[str]()
    unnamed = {"line"} if is_quantity else frozenset[str]()
    return bool((before and _words(before[1]) & (own - unnamed)) or unit & (own - _QUANTITIES or _COUNTED))


def _vocabulary(tool: ToolDefinition) -> dict[str, float]:
    """Return the words of a tool's parameters, description and name, with weights."""
    properties: dict[str, Any] = tool.parameters.get("properties", {})
    options = (str(o) for spec in properties.values() if isinstance(spec, dict) for o in spec.get("enum") or ())
    first = re.match(r"\W*([A-Za-z]+|[\u4e00-\u9fff]{2})", tool.description)
    sources = (
        (1.0, _words(" ".join([*properties, *options])) - _ACTIONS),
        (2.0 if tool.name.startswith("agent.") else 1.0, _words(tool.description[:200])),
        (2.0, _words(first[1] if first else "")),
        (_IN_NAME, _words(tool.name)),
    )
    return {word: weight for weight, source in sources for word in source}


def _pick(clause: _Clause, tools: Sequence[ToolDefinition], earlier: Sequence[str]) -> list[_Filled]:
    """Return the calls of the tool that matches a clause best (the first of a tie), or none below the threshold.

    `earlier` are results of tools, the latest first, for references such as "read it".
    """
    vocabularies = [_vocabulary(tool) for tool in tools]
    shared = Counter(word for vocabulary in vocabularies for word, weight in vocabulary.items() if weight >= _IN_NAME)
    best, calls = (_THRESHOLD, -1), list[_Filled]()
    for tool, vocabulary in zip(tools, vocabularies, strict=True):
        needs_expression = "expression" in map(_kind, tool.parameters.get("required", ()))
        texts = _expressions(clause, earlier) if needs_expression else [""]
        filled = [call for text in texts if (call := _Call(tool, clause, earlier, text)).is_complete]
        if filled and (score := _score(filled[0], vocabulary, shared)) > best:
            best, calls = score, [(tool.name, call.arguments) for call in filled]
    return calls


def _score(call: _Call, vocabulary: Mapping[str, float], shared: Mapping[str, int]) -> tuple[float, int]:
    """Return how well a tool matches, and how many words of its name the clause contains."""
    clause, own = call.clause, _words(call.tool.name)
    hits = (clause.words | clause.hints) & vocabulary.keys()
    named = own & (clause.words | clause.hints)
    # A noun in the names of many tools (file) is weak evidence; a verb (search) is strong, however many share it.
    score = sum(vocabulary[word] / (1 if word in _ACTIONS else shared.get(word, 1)) for word in sorted(hits))
    if call.tool.name.startswith("agent."):
        asked = own <= clause.words and re.search(r"\b(?:ask|tell|let|have|agent)\b|让|问|交给|请", clause.text.lower())
        return score + (6.0 if asked else 0.0), len(named)
    if not any(vocabulary[word] > 1 for word in hits):
        return 0.0, 0
    if len(own) > 2 and named == own:  # a long name, of which each word was said, among many that are similar
        score += _THRESHOLD
    unknown = (clause.words & _ACTIONS) - vocabulary.keys()
    score -= len(unknown) + len(unknown & _EFFECTS)
    return score + 1.5 * len(call.used) - call.unused + (2.0 * call.options if named else 0.0), len(named)


@dataclass(frozen=True, slots=True)
class _Turn:
    """The state of a request, from the transcript."""

    text: str
    answered: tuple[tuple[ToolCall | None, str], ...]
    """Its calls with their results."""
    earlier: tuple[str, ...]
    """Results of earlier requests, the latest first."""
    searched: tuple[str, ...]
    """What the request has already searched for among tools."""
    instruction: str
    """The instruction after the request, if it is the last message."""
    files: tuple[str, ...]
    """Descriptions of the files of the request and its results."""

    @classmethod
    def read(cls, messages: Sequence[Message]) -> _Turn:
        start = max((at for at, message in enumerate(messages) if message.role == "user"), default=len(messages))
        before, after = messages[:start], messages[start:]
        calls = {call.id: call for message in after for call in message.tool_calls}
        results = [(calls.get(m.tool_call_id or ""), m.content) for m in after if m.role == "tool"]
        return cls(
            text=after[0].content.strip()[:_MAX_INPUT_CHARS] if after else "",
            answered=tuple((call, text) for call, text in results if call is None or call.tool != _TOOL_SEARCH),
            searched=tuple(str(call.arguments.get("words")) for call in calls.values() if call.tool == _TOOL_SEARCH),
            earlier=tuple(m.content[:_MAX_INPUT_CHARS] for m in reversed(before) if m.role == "tool"),
            instruction=after[-1].content if after and after[-1].role in ("system", "user") else "",
            files=tuple(part.description for message in after for part in message.media),
        )

    def words_to_search(self, tools: Sequence[ToolDefinition]) -> str:
        """Return the first clause that no tool fits and that was not searched for; empty if there is none."""
        unknown = (clause.text for clause, calls, _ in self.clauses(tools) if clause.words and not calls)
        new = (text for text in unknown if text not in self.searched and not _GREETING.fullmatch(text))
        return next(new, "")

    def script(self, tools: Sequence[ToolDefinition]) -> str:
        """Return the script in the request, if one can be run."""
        return self.text.partition(_SCRIPT)[2].strip() if any(one.name == _RUN_SCRIPT for one in tools) else ""

    def clauses(self, tools: Sequence[ToolDefinition]) -> Iterator[tuple[_Clause, list[_Filled], int]]:
        """Yield each clause with the calls of the tool that matches it and the number of calls before them."""
        position = 0
        for clause in _clauses(self.text):
            results = [content for _, content in reversed(self.answered[:position])]
            calls = _pick(clause, tools, [*results, *self.earlier])
            yield clause, calls, position
            position += len(calls)


class OfflineModel:
    """A model that follows rules: the same request always returns the same reply."""

    info = ModelInfo(provider="offline", model="", typed=True, stand_in=True)

    async def stream(self, request: ModelRequest) -> AsyncIterator[Delta]:
        """Answer, call matching tools, or plan; raise ModelError for typed answers other than plans and routes."""
        turn, choice = _Turn.read(request.messages), request.settings.tool_choice
        offered = [tool for tool in request.tools if choice in (None, "auto", "required", tool.name)]
        tools = [tool for tool in offered if tool.name != _TOOL_SEARCH]
        calls: tuple[ToolCall, ...] = ()
        if request.output is not None:
            text = _typed(request.output, turn, request.messages, tools)
        elif (code := turn.script(offered)) and not turn.answered:
            text, calls = "", (ToolCall(id="call_script", tool=_RUN_SCRIPT, arguments={"code": code}),)
        elif len(offered) > len(tools) and (words := turn.words_to_search(tools)):
            text, calls = "", (ToolCall(id="call_search", tool=_TOOL_SEARCH, arguments={"words": words}),)
        else:
            done = len(turn.answered)
            open_calls = (calls[max(0, done - before) :] for _, calls, before in turn.clauses(tools))
            numbered = enumerate(next(filter(None, open_calls), []), start=done + 1)
            calls = tuple(ToolCall(id=f"call_{at}", tool=tool, arguments=values) for at, (tool, values) in numbered)
            text = "" if calls else _answer(turn, () if code else tools)
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


_TRIES = (
    ("calculator", "calculate the mean of [1, 2, 3]", "计算 [1, 2, 3] 的平均值"),
    ("search_files", "search for files containing 'agent'", "搜索包含 'agent' 的文件"),
    ("list_dir", "list the folder agents.d", "列出目录 agents.d"),
    ("text.count_words", "count the words in 'agents are files'", "统计 'agents are files' 的单词数"),
    ("log_transform", "show the errors of data/logs/app.log", "显示 data/logs/app.log 的错误"),
)
"""Messages that these rules understand, by the tool that they need: in English and in Chinese."""
_GREETING = re.compile(
    r"(?:(?:hi|hello|hey|good (?:morning|day|evening)|你好|您好)[\s,.!?，。！？]{0,3}){0,2}"
    r"(?:there|(?:what|how) can you (?:do|help)(?: for me| me)?|who are you|help|你能做什么|你会什么|你是谁|帮助)?"
    r"[\s,.!?，。！？]{0,3}",
    re.IGNORECASE,
)
_TEXTS = {
    "Denied": ("{} was denied: {}", "{} 被拒绝：{}"),
    "Cancelled": ("{} was cancelled: {}", "{} 被取消：{}"),
    "Error": ("{} failed: {}", "{} 失败：{}"),
    "none": ("Nothing was found ({}).", "没有找到结果（{}）。"),
    "unmatched": ("{}: no tool fits", "{}：没有适合的工具"),
    "files": ("({} received, which the offline model cannot read: {})", "（收到 {} 个文件，离线模型不能读取：{}）"),
    "more": (" and others", " 等"),
    "hello": ("Hello! I can use {}.", "你好！我可以使用这些工具：{}。"),
    "hello, no tools": ("Hello! I have no tools.", "你好！我现在没有可用的工具。"),
    "real": (
        "(A rule-based stand-in answers, not a model; use a real one with `-m openai/...`.)",
        "（离线替身模型按规则回答；用 `-m openai/...` 可使用真正的模型。）",
    ),
    "can": ("by its rules it can call {}", "我能按规则调用这些工具：{}"),
    "no tools": ("it has been offered no tools", "现在没有工具可用"),
    "lost": (
        "This is the offline stand-in, and it knows no way to do this; {}. For a real model set OPENAI_API_KEY and"
        " write `model: openai/...`.",
        "我是离线替身模型，没有找到适合这个请求的做法；{}。"
        "要用真正的模型，请设置 OPENAI_API_KEY 并写 `model: openai/...`。",
    ),
}
"""Sentences of an answer, in English and in Chinese."""


def _answer(turn: _Turn, tools: Sequence[ToolDefinition]) -> str:
    """Return the results as sentences, with the clauses that no tool fits, or an introduction without results."""
    language = 1 if _CJK.search(turn.text) else 0
    listed = re.search(r"^\s*(?:[-*]|[0-9]+[.)])\s.*\Z", turn.instruction, re.MULTILINE | re.DOTALL)
    if turn.answered:
        lines = [_sentence(call, content, language, len(turn.answered) == 1) for call, content in turn.answered]
        lost = (c.text for c, calls, _ in turn.clauses(tools) if tools and not calls and c.words & _ACTIONS)
        lines += [_TEXTS["unmatched"][language].format(text) for text in lost]
        text = lines[0] if len(lines) == 1 else "\n".join(f"- {line}" for line in lines)
    else:
        text = listed[0].strip() if listed and not tools else _introduction(turn.text, tools, language)
    if not turn.files:
        return text
    count = len(turn.files) if language else "1 file" if len(turn.files) == 1 else f"{len(turn.files)} files"
    return f"{text}\n\n{_TEXTS['files'][language].format(count, _joined(turn.files, language))}"


def _sentence(call: ToolCall | None, content: str, language: int, alone: bool) -> str:
    """Return one result as a sentence."""
    expression = call.arguments.get("expression") if call else None
    label = (
        expression or f"{call.tool}({', '.join(_shorten(_text(v), 60) for v in call.arguments.values())})"
        if call
        else "tool"
    )
    if failed := re.match(r"(Error|Denied|Cancelled|错误)\b[:：]?\s*", content):
        return _TEXTS[failed[1] if failed[1] in _TEXTS else "Error"][language].format(
            label, _shorten(content[failed.end() :])
        )
    data = _parsed(content)
    lists = [value for value in data.values() if isinstance(value, list)] if isinstance(data, dict) else []
    nothing = (
        r"(?:(?:no|0|nothing)\b(?:\s+\w+)?\s+(?:match\w*|found|files?|results?|lines?|entries)\b|(?:null|None)?\Z)"
    )
    if data in ([], {}, "") or (lists and not any(lists)) or re.match(nothing, content.strip(), re.IGNORECASE):
        return _TEXTS["none"][language].format(label)
    if isinstance(data, dict):
        data = [f"{key}: {_text(value)}" for key, value in data.items()]
    elif isinstance(data, list):
        data = [f"- {_text(item)}" for item in data]
    result = _shorten("\n".join(data) if isinstance(data, list) else str(data or content))
    if alone:
        return result
    if expression:
        return f"{label} = {result}"
    return label + ("：" if language else ":") + ("\n" if "\n" in result else "" if language else " ") + result


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def _parsed(content: str) -> Any:
    try:
        return json.loads(content) if content.lstrip().startswith(("{", "[", '"')) else None
    except (ValueError, RecursionError):
        return None


def _shorten(text: str, length: int = 600) -> str:
    text = text.strip()
    return text if len(text) <= length else text[: length - 1].rstrip() + "…"


def _joined(names: Sequence[str], language: int) -> str:
    return (", ", "、")[language].join(names)


def _introduction(text: str, tools: Sequence[ToolDefinition], language: int) -> str:
    """Return what the tools can do, with messages to try for a greeting."""
    names = [tool.name for tool in tools[:6]]
    listed = _joined(names, language) + (_TEXTS["more"][language] if len(tools) > len(names) else "")
    if not _GREETING.fullmatch(text):
        return _TEXTS["lost"][language].format(_TEXTS["can" if names else "no tools"][language].format(listed))
    tries = [f"- {('try: ', '例如：')[language]}{messages[language]}" for tool, *messages in _TRIES if tool in names]
    hello = _TEXTS["hello" if names else "hello, no tools"][language].format(listed)
    return "\n".join([hello, *tries, "", _TEXTS["real"][language]])


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
    route = {
        "agent": agent,
        "executor": "plan" if len(_clauses(turn.text)) > 1 else "react",
        "reason": f"it is about {', '.join(hits)}" if hits else "nothing else is known of it",
        "confidence": 1.0 if len(shared) == 1 else round(len(hits) / (len(hits) + 1), 2),
    }
    return json.dumps(route)


_POINTING = re.compile(
    r"\b(?:it|them|the (?:results?|findings?|output|report|lines?))\b|结果|它们?|内容", re.IGNORECASE
)
_SUGGESTION = re.compile(r"there is no \w+ '([^']+)'; did you mean ([^,?]+)")


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
    clauses = [(clause, _pick(clause, tools, ())) for clause in _clauses(turn.text)]
    if not any(calls for _, calls in clauses):
        return [StepDraft(id="s1", description=turn.text)]
    steps, previous = list[StepDraft](), tuple[str, ...]()
    for clause, calls in clauses:
        drafts: list[tuple[str | None, dict[str, Any]]] = [*calls] or [(None, {})]
        if len(calls) == 1 and "analyze" in clause.words:
            drafts = [(calls[0][0], values) for values in _in_each_mode(calls[0], tools)]
        outputs = "\n\n".join(f"{{{{ steps.{name}.output }}}}" for name in previous)
        refers = outputs and not clause.literals["quote"] and _POINTING.search(clause.text)
        step_ids = tuple(f"s{len(steps) + number}" for number in range(1, len(drafts) + 1))
        for step_id, (tool, values) in zip(step_ids, drafts, strict=True):
            about = f"{clause.text}: {list(values.values())[-1]}" if len(drafts) > 1 else clause.text
            filled = {name: outputs if refers and _kind(name) == "text" else value for name, value in values.items()}
            steps.append(StepDraft(id=step_id, description=about, tool=tool, parameters=filled, depends_on=previous))
        previous = step_ids
    return steps


def _in_each_mode(call: _Filled, tools: Sequence[ToolDefinition]) -> list[dict[str, Any]]:
    """Return the arguments for each of the first three modes of the tool, if it has modes and the call names none."""
    tool = next(tool for tool in tools if tool.name == call[0])
    modes = _resolved(tool, tool.parameters.get("properties", {}).get("operation")).get("enum", ())
    return [call[1]] if "operation" in call[1] or not modes else [{**call[1], "operation": mode} for mode in modes[:3]]


def _corrected(step: StepDraft, turn: _Turn) -> StepDraft | None:
    """Return a failed step with the name that its error suggests, or None if it suggests none."""
    parameters = step.parameters
    for call, error in turn.answered:
        suggestion = _SUGGESTION.search(error)
        if call and suggestion and (call.tool, call.arguments) == (step.tool, parameters):
            wrong, right = suggestion[1], suggestion[1][: suggestion[1].rfind("/") + 1] + suggestion[2].strip()
            parameters = {
                name: right + value[len(wrong) :] if str(value).startswith(wrong) else value
                for name, value in parameters.items()
            }
    return step.model_copy(update={"parameters": parameters}) if parameters != step.parameters else None
