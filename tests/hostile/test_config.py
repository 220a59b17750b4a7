"""Hostile files: templates, agents, plugins. Each is a problem with its place; served agents stay active."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from framework import Runtime
from framework.config.generations.generation import Generation
from framework.config.templates import prompts as prompts_module
from framework.testing import ScriptedModel, calls
from framework.types.problem import Problem
from tests.support.hostile_runs import CONTINUED, victim
from tests.support.projects import agent, write

GOOD = {
    "agents.d/victim.yaml": agent("victim", instructions="{template: v.j2}"),
    "prompts/v.j2": "You are good.",
    "plugins/p.py": "from framework import tool\n@tool(risk='low')\ndef say() -> str:\n    'Say.'\n    return 'good'\n",
}


def after_edit(root: Path, files: dict[str, str | bytes]) -> tuple[Problem, ...]:
    """Edit a valid project, check that its configuration stays active, and return the reported problems."""

    async def main() -> tuple[Problem, ...]:
        models = {"scripted": ScriptedModel(calls(("p.say", {})), CONTINUED)}
        async with Runtime.open(write(root, GOOD), models=models, watch=False) as runtime:
            for name, text in files.items():
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                (root / name).write_bytes(text if isinstance(text, bytes) else text.encode())
            generation: Generation = await runtime.reload()
            result = await runtime.run("go", agent="victim")
            assert result.output == CONTINUED
            assert [call.result for call in result.tool_calls] == ["good"]
            assert runtime.catalog.current.agents["victim"].instructions("en", {}, None) == "You are good."
            return generation.errors

    return asyncio.run(main())


@pytest.mark.hostile(28)
@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ agent | attr('__class__') }}",
        "{{ '{0.__class__}'.format(agent) }}",
        "{{ self._TemplateReference__context }}",
        "{{ cycler.__init__.__globals__ }}",
        "{% include '/etc/passwd' %}",
        "{% include '../../etc/passwd' %}",
        "{% import 'os' as os %}",
        "{{ agent.update({'name': 'evil'}) }}",
    ],
)
def test_llm01_a_template_that_accesses_more_than_its_data_is_rejected(tmp_path: Path, source: str) -> None:
    problems = after_edit(tmp_path, {"prompts/v.j2": source})
    assert {problem.path for problem in problems} == {"prompts/v.j2", "agents.d/victim.yaml"}


@pytest.mark.hostile(28)
@pytest.mark.parametrize("key", ["description", "instructions"])
def test_llm07_jinja_in_an_agent_file_is_text(tmp_path: Path, key: str) -> None:
    hostile = "{{ ''.__class__ }}{% include '/etc/passwd' %}{{ 7 * 7 }}"
    keys = {key: f'"{hostile}"'}
    seen = victim(tmp_path, CONTINUED, tools=(), **keys)
    assert seen.result.output == CONTINUED
    if key == "instructions":
        assert seen.requests[0].messages[0].content.startswith(hostile)


@pytest.mark.hostile(29)
@pytest.mark.parametrize(
    "source",
    [
        "x\n{% for a in range(99999) %}{% for b in range(99999) %}{% for c in range(99999) %}{% endfor %}{% endfor %}"
        "{% endfor %}",
        "x\n{% macro m() %}{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}{% endmacro %}"
        "{{ m() }}",
        "x\n{{ range(10 ** 9) | list }}",
        "x\n{% for a in range(99999) %}xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx{% endfor %}",
        "x\n{{ lipsum(n=20000) }}",
        "x\n{% include 'v.j2' %}",
        "x\n" + "{% if true %}" * 3000 + "{% endif %}" * 3000,
    ],
    ids=lambda source: source[2:40],
)
def test_llm10_an_endless_or_too_large_template_is_rejected(
    tmp_path: Path, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prompts_module, "MAX_RENDER_SECONDS", 0.2)
    problems = after_edit(tmp_path, {"prompts/v.j2": source})
    assert {problem.path for problem in problems} == {"prompts/v.j2", "agents.d/victim.yaml"}
    assert all(len(str(problem)) < 2000 for problem in problems)


@pytest.mark.hostile(29)
def test_llm10_an_aborted_template_names_the_line(tmp_path: Path) -> None:
    loop = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
    (here,) = [p for p in after_edit(tmp_path, {"prompts/v.j2": f"one\ntwo\n{loop}"}) if p.path == "prompts/v.j2"]
    assert here.line == 3
    assert here.message.startswith("exceeds the limit of 100000 rendering steps")


DEEP = b"a: " + b"[" * 100_000
BOMB = b"".join(b"a%d: &a%d [*a%d, *a%d]\n" % (n + 1, n + 1, n, n) for n in range(30))


@pytest.mark.hostile(30)
@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"!!python/object/apply:os.system ['touch pwned']\n", "tag"),
        (agent("victim", instructions="!!python/name:os.system").encode(), "tag"),
        (b"a0: &a0 [x]\n" + BOMB, "anchors and aliases are not supported"),
        (b"<<: {version: 1}\n", "merge keys"),
        (agent("victim").encode() + b"name: other\n", "duplicate key"),
        (b"version: 1\nname: victim\n" + b"#" * 10_000_000, "larger than 1048576 bytes"),
        (DEEP, "nest"),
        (agent("victim", instructions="{template: ../../etc/passwd}").encode(), "there is no template"),
        (agent("victim", instructions="{template: /etc/passwd}").encode(), "there is no template"),
        (agent("victim", executor="os.system").encode(), "executor"),
        (agent("victim", hooks="{before_tool: [os.system]}").encode(), "os.system"),
        (agent("victim", model="${HOME}").encode(), "unknown model '${HOME}'"),
        (agent("../victim").encode(), "agents.d/victim.yaml:2"),
        (b"\xff\xfe" + b"\0" * 1000, "not UTF-8"),
    ],
    ids=lambda value: repr(value)[:30],
)
def test_asi04_a_hostile_agent_file_is_refused_and_runs_nothing(tmp_path: Path, text: bytes, message: str) -> None:
    problems = after_edit(tmp_path, {"agents.d/victim.yaml": text})
    assert message in "\n".join(str(problem) for problem in problems)
    assert not (tmp_path / "pwned").exists()


def plugin(body: str) -> dict[str, str | bytes]:
    return {"plugins/p.py": body, "plugins/other.py": 'import json\nassert json.dumps(1) == "1"\n'}


@pytest.mark.hostile(31)
@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("raise RuntimeError('no')\n", "RuntimeError while loading: no"),
        ("import sys\nsys.exit(3)\n", "calls sys.exit() while loading"),
        ("while True: pass\n", "not finished after"),
        ("raise KeyboardInterrupt\n", "KeyboardInterrupt"),
        ("def x(:\n", "invalid syntax"),
        ("import nowhere_to_be_found\n", "nowhere_to_be_found"),
        ("\0", "null bytes"),
    ],
)
def test_asi04_a_plugin_that_breaks_at_import_keeps_its_last_good_tools(
    tmp_path: Path, body: str, message: str
) -> None:
    problems = after_edit(tmp_path, plugin(body))
    assert {problem.path for problem in problems} == {"plugins/p.py"}
    assert message in problems[0].message


@pytest.mark.hostile(31)
def test_asi04_a_plugin_named_like_a_module_does_not_replace_it_and_no_file_is_imported_automatically(
    tmp_path: Path,
) -> None:
    """Python files next to agents and templates are never imported, and a plugin does not shadow a module."""
    names = ("json", "os", "logging", "asyncio", "pydantic", "framework", "tools", "sitecustomize")
    evil = f"from pathlib import Path\nPath({str(tmp_path)!r}, 'pwned-by-' + __name__).touch()\n"
    files: dict[str, str | bytes] = {
        f"{folder}{name}.py": evil for folder in ("", "agents.d/", "prompts/") for name in names
    }
    after_edit(tmp_path, files)
    assert [*tmp_path.glob("pwned*")] == []
    harmless: dict[str, str | bytes] = {
        f"plugins/{name}.py": "dumps = loads = path = getLogger = BaseModel = None\n" for name in names
    }
    assert after_edit(tmp_path, harmless | plugin(str(GOOD["plugins/p.py"]))) == ()


@pytest.mark.hostile(31)
@pytest.mark.parametrize(
    "edit", [Path.unlink, lambda path: path.write_text("raise SystemExit\n")], ids=["gone", "broken"]
)
def test_asi08_a_call_finishes_on_its_code_after_its_plugin_is_removed(
    tmp_path: Path, edit: Callable[[Path], object]
) -> None:
    source = '''
    from framework import ToolContext, tool
    @tool(risk="low")
    async def wait(context: ToolContext) -> str:
        """Wait."""
        await context.deps["edit"]()
        return later()
    def later() -> str:
        return "still here"
    '''

    async def main() -> None:
        async def change() -> None:
            edit(root / "plugins/w.py")
            await runtime.reload()

        root = write(tmp_path, {"agents.d/victim.yaml": agent("victim"), "plugins/w.py": source})
        models = {"scripted": ScriptedModel(calls(("w.wait", {})), CONTINUED)}
        async with Runtime.open(root, models=models, deps={"edit": change}, watch=False) as runtime:
            result = await runtime.run("go")
        assert result.output == CONTINUED
        assert [call.result for call in result.tool_calls] == ["still here"]

    asyncio.run(main())
