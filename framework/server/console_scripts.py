"""Joins the ES modules of the console into few scripts, so that a visit needs three requests and not fifty.

Each module becomes a function: its imports call the functions of other modules, its exports are what it returns. So
modules keep their own names, and run once. A module's number is its place among the sorted paths. There is one script
for what a page loads at once, and one for each `import(…)`, with what it needs besides. Modules may not import each
other in circles.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from posixpath import dirname, join, normpath

import rjsmin

_TARGET = r"""["'](\.\.?/[^"']+)["']"""
_IMPORT = re.compile(rf"""^import\s+(?:([^"'();=]+?)\s+from\s+)?{_TARGET};?""", re.MULTILINE)
"""An import at the beginning of a module."""
_LATER = re.compile(rf"""/\*\*.*?\*/|\bimport\(\s*{_TARGET}\s*\)""", re.DOTALL)
"""A comment with types, or an import that is loaded when it is needed."""
_EXPORT = re.compile(r"^export\s+((?:async\s+)?(?:const|function|class)\s+([\w$]+))", re.MULTILINE)
_DEFAULT = re.compile(r"^export\s+default\s", re.MULTILINE)
_WAITS = re.compile(r"^await\s", re.MULTILINE)
"""The main module may wait before it shows anything."""
_MAIN = """\
const modules = {%s};
const exported = {};
const need = (number) => (exported[number] ??= modules[number]() ?? {});
const load = async (name, number) => {
  if (!modules[number]) {
    const others = (await import(`./${name}`)).default(need, load);
    for (const other in others) modules[other] ??= others[other];
  }
  return need(number);
};
need(%d);
"""
"""The first script. A module is run when it is first needed, and later scripts add modules."""
_LATER_SCRIPT = "export default (need, load) => ({%s});"


def joined(modules: Mapping[str, str], main: str) -> dict[str, bytes]:
    """Return the scripts by name: the main one, and one by the name of each module that is imported later.

    Args:
        modules: the texts of all modules by path.
        main: the module that starts the page.
    """
    numbers = {name: number for number, name in enumerate(sorted(modules))}

    def table(names: Iterable[str]) -> str:
        return ",\n".join(f"{numbers[name]}: {as_function(name, modules[name], numbers)}" for name in names)

    at_once = _imported(modules, main)
    scripts = {main: _MAIN % (table(at_once), numbers[main])}
    for name in sorted({target for one in modules for target in _later_imports(modules, one)}):
        scripts[name] = _LATER_SCRIPT % table(one for one in _imported(modules, name) if one not in at_once)
    return {name: bytes(rjsmin.jsmin(text.encode())) for name, text in scripts.items()}


def as_function(name: str, text: str, numbers: Mapping[str, int]) -> str:
    """Return a module as an expression for a function, which returns its exports.

    It is in parentheses, so that browsers compile it while they read the script, and not when they call it.

    Args:
        name: its path.
        text: its text.
        numbers: the numbers of all modules by path.
    """

    def imported(match: re.Match[str]) -> str:
        clause, needed = match[1], f"need({numbers[_path(name, match[2])]});"
        if not clause:
            return needed
        if clause.startswith("*"):
            return f"const {clause.partition(' as ')[2].strip()} = {needed}"
        names = clause.replace(" as ", ": ") if clause.startswith("{") else f"{{ default: {clause} }}"
        return f"const {names} = {needed}"

    def loaded(match: re.Match[str]) -> str:
        target = _path(name, match[1]) if match[1] else ""
        return f'load("{target}", {numbers[target]})' if target in numbers else ""

    exports = [found[2] for found in _EXPORT.finditer(text)]
    if _DEFAULT.search(text):
        exports.append("default: value")
    body = _DEFAULT.sub("const value = ", _EXPORT.sub(r"\1", _IMPORT.sub(imported, _LATER.sub(loaded, text))))
    waits = "async " if _WAITS.search(text) else ""
    returned = f"return {{ {', '.join(exports)} }};" if exports else ""
    return f"({waits}() => {{\n{body}\n{returned}\n}})"


def _imported(modules: Mapping[str, str], start: str) -> list[str]:
    """Return a module with all that it imports at once, in any number of steps."""
    found: dict[str, None] = {}
    waiting = [start]
    while waiting:
        name = waiting.pop()
        if name in modules and name not in found:
            found[name] = None
            waiting += [_path(name, match[2]) for match in _IMPORT.finditer(modules[name])]
    return sorted(found)


def _later_imports(modules: Mapping[str, str], name: str) -> set[str]:
    targets = {_path(name, match[1]) for match in _LATER.finditer(modules[name]) if match[1]}
    return targets & modules.keys()


def _path(name: str, target: str) -> str:
    """Return the path that a module imports as `target`, such as `../core/dom.js`."""
    return normpath(join(dirname(name), target))
