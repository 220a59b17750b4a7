"""The templates of one generation: the project's own over the shipped ones, in one sandboxed environment.

Templates see plain data only. Text of users, tools and agent files is never rendered: it is only ever a value.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import DictLoader, StrictUndefined, TemplateError, TemplateNotFound, TemplateSyntaxError, UndefinedError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from framework.types.problem import Problem

MAX_RENDERED_CHARS = 64 * 1024
_MARKS = ("{{", "{%", "{#")


class PromptError(Exception):
    """A template that cannot be rendered; `problem` says where and why."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(str(problem))
        self.problem = problem


@cache
def shipped_templates() -> Mapping[str, str]:
    """The default templates by name: system, react, plan, summary and error, in English and Chinese."""
    folder = Path(__file__).parent / "templates"
    return {path.name: path.read_text("utf-8") for path in sorted(folder.glob("*.j2"))}


class Prompts:
    """Renders templates by name and locale: `system.zh-TW.j2`, else `system.zh.j2`, else `system.j2`."""

    def __init__(self, sources: Mapping[str, str]) -> None:
        self._own = frozenset(sources)
        self._sources = {**shipped_templates(), **sources}
        self._environment = ImmutableSandboxedEnvironment(
            loader=DictLoader(self._sources),
            undefined=StrictUndefined,
            auto_reload=False,
            cache_size=-1,
            keep_trailing_newline=True,
        )
        for name in ("lipsum", "cycler", "joiner"):
            self._environment.globals.pop(name, None)

    def names(self) -> list[str]:
        """All templates, shipped ones included."""
        return sorted(self._sources)

    def has(self, name: str) -> bool:
        """Is there a template of exactly this name?"""
        return name in self._sources

    def problems(self) -> Iterator[Problem]:
        """The syntax errors of the project's templates."""
        for name in sorted(self._own):
            try:
                self._environment.get_template(name)
            except TemplateError as error:
                yield self._problem(name, error)

    def variants(self, name: str) -> list[str]:
        """The template and its locale variants."""
        stem, _, suffix = name.rpartition(".")
        return [n for n in self.names() if n == name or (n.startswith(f"{stem}.") and n.endswith(f".{suffix}"))]

    def render(self, name: str, locale: str, variables: Mapping[str, Any]) -> str:
        """Render a template; a file without any Jinja in it comes out byte for byte.

        Raises:
            PromptError: it is missing, uses an unknown variable, fails, or gets too long.
        """
        chosen = next((candidate for candidate in _candidates(name, locale) if candidate in self._sources), name)
        source = self._sources.get(chosen, "")
        if source and not any(mark in source for mark in _MARKS):
            return source
        try:
            text = self._environment.get_template(chosen).render(variables)
        except (TemplateError, TypeError, ValueError, ArithmeticError, LookupError, RecursionError) as error:
            raise PromptError(self._problem(chosen, error)) from None
        if len(text) > MAX_RENDERED_CHARS:
            message = f"renders to {len(text)} characters; at most {MAX_RENDERED_CHARS} are sent"
            raise PromptError(Problem(path=f"prompts/{chosen}", message=message))
        return text

    def _problem(self, name: str, error: Exception) -> Problem:
        if isinstance(error, TemplateNotFound):
            return Problem(path=f"prompts/{name}", message=f"there is no template {error.name!r}")
        line = error.lineno if isinstance(error, TemplateSyntaxError) else self._line_of(name, error)
        source = self._sources.get(name, "").splitlines()
        excerpt = source[line - 1] if line and line <= len(source) else None
        hint = "declare it under `inputs`, or give it under `vars`" if isinstance(error, UndefinedError) else None
        message = str(error) or type(error).__name__
        return Problem(path=f"prompts/{name}", line=line, message=message, hint=hint, excerpt=excerpt)

    def _line_of(self, name: str, error: Exception) -> int | None:
        """The template's line a render error came from: Jinja rewrites tracebacks to template lines."""
        line = None
        trace = error.__traceback__
        while trace is not None:
            if trace.tb_frame.f_code.co_filename in ("<template>", name):
                line = trace.tb_lineno
            trace = trace.tb_next
        return line


def _candidates(name: str, locale: str) -> Iterator[str]:
    stem, _, suffix = name.rpartition(".")
    parts = locale.replace("_", "-").split("-")
    for length in range(len(parts), 0, -1):
        yield f"{stem}.{'-'.join(parts[:length])}.{suffix}"
    yield name
