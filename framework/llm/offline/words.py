"""Splits a request in English or Chinese into clauses, and each clause into words and literals."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from framework.types.messages import ToolDefinition
from framework.types.python_expression import parse_expression

LEXICON = {
    "search": "search, find, locate, grep, lookup, look for, look up, 搜索, 查找, 寻找, 检索, 查询, 搜一下, 找一下",
    "read": "read, show, open, cat, view, display, look at, what is in, 读取, 查看, 打开, 阅读, 显示, 看看, 有什么",
    "calculate": "calculate, calculator, calculation, compute, evaluate, 计算, 运算, 算一下, 算出, 求和, 求出",
    "list": "list, ls, 列出, 列举, 列一下",
    "analyze": "analyze, analyse, analysis, inspect, examine, 分析, 诊断",
    "echo": "echo, repeat, say, 回显, 重复, 复述, 说一声",
    "write": "write, save, create, 写入, 保存, 创建, 新建",
    "delete": "delete, remove, erase, rm, 删除, 移除, 清空",
    "send": "send, 发送",
    "fetch": "fetch, download, 下载, 抓取",
    "mean": "mean, average, avg, 平均, 均值",
    "max": "max, maximum, largest, biggest, highest, 最大, 最高",
    "min": "min, minimum, smallest, lowest, 最小, 最低",
    "sum": "sum, total, add up, 总和, 求和, 之和, 合计, 总计",
    "median": "median, 中位数, 中值",
    "count": "count, how many, 统计, 个数, 数量, 计数, 多少个, 几个",
    "file": "file, document, 文件, 文档",
    "dir": "dir, directory, folder, repository, repo, 目录, 文件夹, 仓库, 代码库",
    "log": "log, 日志",
    "error": "error, failure, 错误, 报错, 异常, 出错",
    "warning": "warning, warn, 警告, 告警",
    "level": "level, severity, 级别, 等级",
    "summary": "summary, summarize, summarise, overview, 摘要, 总结, 概要, 汇总, 概况",
    "tail": "tail, last, newest, latest, 末尾, 最后, 最近, 最新",
    "limit": "limit, at most, up to, 最多, 限制, 上限",
    "time": "time, clock, now, 时间, 几点, 现在",
    "weather": "weather, forecast, 天气",
    "order": "order, 订单",
    "refund": "refund, 退款",
    "translate": "translate, translation, 翻译",
}
"""Canonical words for comparison, each with its synonyms in English and Chinese."""
EFFECT_WORDS = frozenset({"write", "delete", "send"})
ACTION_WORDS = EFFECT_WORDS | {"search", "read", "calculate", "list", "analyze", "echo", "fetch"}
IN_NAME, _FIRST_IN_DESCRIPTION, ELSEWHERE = 3.0, 2.0, 1.0
"""Weight of a word of a tool, by where it appears."""
_DESCRIPTION_LENGTH = 200
OPERATIONS = ("mean", "median", "sum", "min", "max", "count")
_FUNCTIONS = frozenset({*OPERATIONS, "round", "abs", "sqrt"})
CJK = re.compile(r"[\u3400-\u4dbf\u4e00-\u9fff]")
NUMBER = re.compile(r"(?<![\w.])-?[0-9]{1,15}(?:\.[0-9]{1,15})?(?![A-Za-z_0-9]|\.[0-9])")

_STOP = frozenset(
    re.findall(
        r"\w+",
        """
        a about all also an and any are as at be been by can could current do does each every everything first for
        from given has have he her here him his how i if in into is it its like lot many me more much must my new no
        not of on one only or our out over please second she should so some such tell than that the their
        them there these they third this those thing to tool us use using value via want was we what when where
        which who why will with without would you your agent mcp skill
        """,
    )
)
_IMPERATIVE = (
    r"(?:please\s{1,9}|请)?(?:(?:search|find|look\s{1,9}(?:for|up|at)|read|open|show|calculate|compute|evaluate|echo|repeat|list"
    r"|analy[sz]e)\b|搜索|查找|读取|打开|查看|计算|分析|列出|回显|重复)"
)
_BOUNDARY = re.compile(
    r"\b(?:and\s{1,9})?(?:then|after\s{1,9}that|afterwards)\b|然后|接着|之后|(?<!不)再(?![见次一度现])"
    rf"|(?:[,，;；。!！\n]|\.\s|\band\b|并且?|以及)\s{{0,9}}(?:and\s{{1,9}}|并且?)?(?={_IMPERATIVE})",
    re.IGNORECASE,
)
_QUOTED = re.compile(
    r"\"([^\"\n]+)\"|`([^`\n]+)`|“([^“”]+)”|‘([^‘’]+)’|「([^「」]+)」|『([^『』]+)』"
    r"|(?<![A-Za-z0-9])'((?:[^'\n]|(?<=[A-Za-z])'(?=[A-Za-z]))+)'(?![A-Za-z0-9])"
)
_URL = re.compile(r"https?://[^\s，。；、）)\"'<>\u4e00-\u9fff]+")
_LIST = re.compile(r"\[[\s0-9.,，、;+\-]*[0-9][\s0-9.,，、;+\-]*\]")
_PATH_LIKE = re.compile(r"(?<![@\w])[A-Za-z0-9_~./-]+")
_FILE_NAME = re.compile(r"(?:.*/)?(?:\.?[\w-][\w.-]*\.[A-Za-z]\w{0,7}|\.[A-Za-z][\w-]{2,})")
_NAMED_DIRECTORY = re.compile(
    r"\b(?:directory|folder|dir)\s+(?:named\s+|called\s+)?([\w.-]+)"
    r"|(?<![\w.-])([\w.-]{1,80})\s{1,9}(?:directory|folder|dir)\b"
    r"|(?<![\w.-])([\w.-]{1,80})\s{0,9}(?:目录|文件夹)|(?:目录|文件夹)\s*([\w.-]+)",
    re.IGNORECASE | re.ASCII,
)
_FILES_OF = re.compile(
    r"(?<![\w.])(C\+\+|C#|[A-Za-z]{1,12})\s{0,3}(?:source\s{1,3})?(?:code\s{1,3})?(?:files?\b|源?文件|源码|代码文件)",
    re.IGNORECASE,
)
_SUFFIXES = {
    "go": "go", "golang": "go", "python": "py", "java": "java", "javascript": "js", "typescript": "ts", "rust": "rs",
    "ruby": "rb", "c": "c", "c++": "cpp", "c#": "cs", "php": "php", "swift": "swift", "kotlin": "kt", "shell": "sh",
    "markdown": "md", "yaml": "yaml", "json": "json", "csv": "csv", "sql": "sql", "html": "html", "css": "css",
}  # fmt: skip
"""File name suffix of a language or format, by its name in lower case."""
_NUMBERS_IN_RESULT = re.compile(r"\b(?:numbers?|values?|figures?)\b|数字|数值", re.IGNORECASE)
_RESULT_POSITION = re.compile(r"^[^\s:]{1,300}:[0-9]{1,9}: ?|^[^\s:]{1,300}$", re.MULTILINE)
"""The path and line number before a search result, or a path alone."""
_MAX_NUMBERS = 100
_QUESTION = re.compile(r"what(?:'s|\s+is|\s+are)|how\s+much|多少|等于|=")

_ARITHMETIC = re.compile(
    r"(?:(?<![0-9])[0-9]++(?:\.[0-9]++)?(?![A-Za-z0-9_])|[-+*/%()\[\],\s]|\b(?:mean|median|sum|min|max|round|count|abs|sqrt)(?=\())+"
)
_SPOKEN_OPERATORS = (
    (re.compile(r"(?<=[0-9)])\s*(?:plus\b|加上?)\s*(?=[0-9(])"), " + "),
    (re.compile(r"(?<=[0-9)])\s*(?:minus\b|减去?)\s*(?=[0-9(])"), " - "),
    (re.compile(r"(?<=[0-9)])\s*(?:times\b|multiplied\s+by\b|乘以?|×)\s*(?=[0-9(])"), " * "),
    (re.compile(r"(?<=[0-9)])\s*(?:divided\s+by\b|除以|÷)\s*(?=[0-9(])"), " / "),
    (re.compile(r"(?<=[0-9)])\s*\^\s*(?=[0-9(])"), " ** "),
)
_DATE = re.compile(r"\b[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}\b")


@dataclass(frozen=True, slots=True)
class Clause:
    """One clause of a request, parsed."""

    text: str
    plain: str
    """The text without its literals."""
    words: frozenset[str]
    """Its words, as canonical words of the lexicon."""
    hints: frozenset[str]
    """Words implied by its literals: the path of a log file implies `log` and `file`."""
    quoted: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()
    urls: tuple[str, ...] = ()
    lists: tuple[str, ...] = ()
    """Lists of numbers, such as `1,2,3`."""

    @property
    def literals(self) -> int:
        """The number of distinct literals; a quoted path counts once."""
        return len({*self.quoted, *self.paths, *self.urls, *self.lists})


def is_chinese(text: str) -> bool:
    """Return whether the text contains Chinese characters."""
    return CJK.search(text) is not None


def is_file_name(path: str) -> bool:
    """Return whether a path ends in a name with an extension."""
    return _FILE_NAME.fullmatch(path) is not None


def words(text: str) -> frozenset[str]:
    """Return the canonical words of a text, the stems of its other words, and its pairs of Chinese characters."""
    lower = re.sub(r"[_\-.]+", " ", re.sub(r"(?<=[a-z])(?=[A-Z])", " ", text)).lower()
    matches = {_WORD_OF.get(_stem(word), _stem(word)) for word in re.findall(r"[a-z]+", lower) if word not in _STOP}
    matches.update(word for phrase, word in _PHRASES if phrase in lower)
    for run in re.findall(r"[\u3400-\u4dbf\u4e00-\u9fff]{2,}", lower):
        matches.update(run[at : at + 2] for at in range(len(run) - 1))
    return frozenset(word for word in matches if len(word) > 1 and word not in _STOP)


def tool_vocabulary(tool: ToolDefinition) -> dict[str, float]:
    """Return the words of a tool's name, description and parameters, with weights."""
    properties: dict[str, Any] = tool.parameters.get("properties", {})
    options = (str(o) for spec in properties.values() if isinstance(spec, dict) for o in spec.get("enum") or ())
    first = re.match(r"\W*([A-Za-z]+|[\u4e00-\u9fff]{2})", tool.description)
    elsewhere = _FIRST_IN_DESCRIPTION if tool.name.startswith("agent.") else ELSEWHERE
    sources = (
        (ELSEWHERE, words(" ".join([*properties, *options])) - ACTION_WORDS),
        (elsewhere, words(tool.description[:_DESCRIPTION_LENGTH])),
        (_FIRST_IN_DESCRIPTION, words(first[1] if first else "")),
        (IN_NAME, words(tool.name)),
    )
    return {word: weight for weight, source in sources for word in source}


def word_pattern(names: frozenset[str]) -> re.Pattern[str]:
    """Return a pattern that matches every form of the words."""
    forms: set[str] = set()
    for name in names:
        for form in LEXICON.get(name, name).split(", "):
            stem = form if " " in form else _stem(form)
            forms.add(form if is_chinese(form) else rf"\b{re.escape(stem)}(?:e?s?|e?d|ing)\b")
    return re.compile("|".join(sorted(forms, key=lambda form: (-len(form), form))) or r"(?!)", re.IGNORECASE)


def split_clauses(text: str) -> list[str]:
    """Split a request into clauses, never inside quotes."""
    masked = _QUOTED.sub(lambda match: "\0" * len(match[0]), text)
    parts, start = [], 0
    for boundary in _BOUNDARY.finditer(masked):
        parts.append(text[start : boundary.start()])
        start = boundary.end()
    parts.append(text[start:])
    return [part for part in (part.strip(" \t\r\n,，;；、。") for part in parts) if part]


def parse_clause(text: str) -> Clause:
    """Parse a clause into its literals and the words around them."""
    quoted = tuple(next(group for group in match.groups() if group) for match in _QUOTED.finditer(text))
    plain = _QUOTED.sub(" ", text)
    urls, plain = tuple(_URL.findall(plain)), _URL.sub(" ", plain)
    lists = tuple(",".join(re.findall(r"[+-]?[0-9.]{0,40}[0-9]", found)) for found in _LIST.findall(plain))
    plain = _LIST.sub(" ", plain)
    paths = [quote for quote in quoted if _is_path(quote)]
    for match in _PATH_LIKE.finditer(plain):
        path = match[0].rstrip(".") if len(match[0].strip(".")) else match[0]
        if _is_path(path):
            paths.append(path)
            plain = plain.replace(path, " ", 1)
    for match in _NAMED_DIRECTORY.finditer(plain):
        name = next(group for group in match.groups() if group)
        if words(name) - {"list", "dir", "file"}:
            paths.append(name)
            plain = plain.replace(match[0], match[0].replace(name, " "), 1)
    kind = None if any(map(is_file_name, paths)) else _FILES_OF.search(plain)
    suffix = _SUFFIXES.get(kind[1].lower()) if kind else None
    if kind and suffix:
        quoted = (*quoted, f"*.{suffix}")
        plain = plain.replace(kind[0], kind[0].replace(kind[1], " "), 1)
    hints = set(words(" ".join(paths).replace("/", " "))) | ({"search", "file"} if suffix else set())
    if any(is_file_name(path) for path in paths):
        hints.add("file")
    plain_words = words(plain)
    if lists or (re.search(r"[0-9]", plain) and (plain_words <= _FUNCTIONS or _QUESTION.search(plain.lower()))):
        hints.add("calculate")
    return Clause(text, plain, plain_words, frozenset(hints) - plain_words, quoted, tuple(paths), urls, lists)


def expressions(clause: Clause, earlier: Sequence[str] = ()) -> list[str]:
    """Return the expressions in a clause: those written out, or its operations applied to its lists.

    Args:
        clause: the clause.
        earlier: results of tools, the latest first; "the numbers" without a list refers to those in the latest.
    """
    if explicit := [run for text in (*clause.quoted, clause.text) for run in _explicit_expressions(text)]:
        return list(dict.fromkeys(explicit))
    named = {word: word_pattern(frozenset({word})).search(clause.plain) for word in OPERATIONS}
    operations = sorted((match.start(), word) for word, match in named.items() if match)
    lists = list(clause.lists)
    if not lists and len(loose := NUMBER.findall(clause.plain)) > 1:
        lists = [",".join(loose)]
    if not lists and earlier and _NUMBERS_IN_RESULT.search(clause.plain):
        numbers = NUMBER.findall(_RESULT_POSITION.sub("", earlier[0]))
        lists = [",".join(numbers[:_MAX_NUMBERS])] if numbers else []
    if 1 < len(operations) == len(lists):
        return [f"{word}([{numbers}])" for (_, word), numbers in zip(operations, lists, strict=True)]
    return [f"{word}([{numbers}])" for numbers in lists for _, word in operations]


def _explicit_expressions(text: str) -> list[str]:
    text = _DATE.sub(" ", text)
    for pattern, operator in _SPOKEN_OPERATORS:
        text = pattern.sub(operator, text)
    runs = (match[0].strip(" \t\r\n,") for match in _ARITHMETIC.finditer(text))
    return [run for run in runs if _is_expression(run)]


def _is_expression(run: str) -> bool:
    if not run or len(run) > 200 or run[0] in "*/%":
        return False
    try:
        return isinstance(parse_expression(run), ast.BinOp | ast.Call)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False


def _is_path(token: str) -> bool:
    if not re.search(r"[^\W\d]", token) or re.search(r"\s", token) or token.lower() in ("and/or", "e.g", "i.e"):
        return False
    return "/" in token or is_file_name(token)


def _stem(word: str) -> str:
    if len(word) > 4 and word.endswith("ies"):
        return word[:-3] + "y"
    if len(word) > 3 and word.endswith("s") and not word.endswith(("ss", "us", "is")):
        word = word[:-1]
    for ending in ("ing", "ed"):
        if len(word) > len(ending) + 3 and word.endswith(ending):
            word = word[: -len(ending)]
    return word[:-1] if len(word) > 3 and word.endswith("e") else word


_FORMS = [(form, word) for word, forms in LEXICON.items() for form in forms.split(", ")]
_WORD_OF = {_stem(form): word for form, word in _FORMS if form.isascii() and " " not in form}
_PHRASES = [(form, word) for form, word in _FORMS if not form.isascii() or " " in form]
