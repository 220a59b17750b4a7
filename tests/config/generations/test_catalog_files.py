"""Reloads of templates, plugins and unreadable files: what fails keeps its last good version."""

from __future__ import annotations

import os
from pathlib import Path
from textwrap import dedent

import pytest

from tests.support.catalogs import BAD, ORDERS, PLUGIN, THREE, USES_ORDERS, Project, one
from tests.support.projects import write

# --- templates


TEMPLATED = {
    "agents.d/a.yaml": one("a", instructions="{template: a.j2}"),
    "agents.d/b.yaml": one("b", instructions="{template: b.j2}"),
    "agents.d/c.yaml": one("c"),
    "prompts/a.j2": "{% include 'shared/x.j2' %}",
    "prompts/b.j2": "b",
    "prompts/shared/x.j2": "{% include 'shared/y.j2' %}",
    "prompts/shared/y.j2": "y",
}


def test_a_template_edit_rebuilds_only_the_agents_that_use_it(tmp_path: Path) -> None:
    project = Project(tmp_path, TEMPLATED)
    before = dict(project.live)
    project.reload({"prompts/shared/y.j2": "new"})
    assert project.live["a"].instructions("en", {}, None) == "new"
    assert before["a"].instructions("en", {}, None) == "y"
    assert all(project.live[name] is before[name] for name in "bc")
    assert project.last_changes() == ([], ["a"], [])


def test_a_new_template_variant_takes_effect(tmp_path: Path) -> None:
    project = Project(tmp_path, TEMPLATED)
    project.reload({"prompts/b.zh.j2": "乙"})
    assert project.live["b"].instructions("zh-TW", {}, None) == "乙"
    assert project.last_changes() == ([], ["b"], [])
    project.reload(delete=("prompts/b.zh.j2",))
    assert project.live["b"].instructions("zh-TW", {}, None) == "b"


def test_a_broken_template_is_one_error_and_its_agents_are_stale(tmp_path: Path) -> None:
    both = {"agents.d/b.yaml": one("b", instructions="{template: a.j2}")}
    project = Project(tmp_path, {**TEMPLATED, **both})
    project.reload({"prompts/shared/y.j2": "one\n{% if %}"})
    assert project.stale() == {"a", "b"}
    assert all(project.live[name].instructions("en", {}, None) == "y" for name in "ab")
    where = "cannot render template a.j2: prompts/shared/y.j2:2:1: Expected an expression"
    assert [error.removesuffix(", got 'end of statement block'") for error in project.errors] == [
        f"agents.d/a.yaml:5:26: {where}",
        f"agents.d/b.yaml:5:26: {where}",
        "prompts/shared/y.j2:2:1: Expected an expression",
    ]
    project.reload({"prompts/shared/y.j2": "fixed"})
    assert (project.errors, project.live["a"].instructions("en", {}, None)) == ([], "fixed")


def test_a_broken_unused_template_affects_no_agent(tmp_path: Path) -> None:
    project = Project(tmp_path, {**TEMPLATED, "prompts/unused.j2": "{{"})
    assert (list(project.live), project.stale()) == (["a", "b", "c"], set())
    assert [error.partition(": ")[0] for error in project.errors] == ["prompts/unused.j2:1:1"]


@pytest.mark.parametrize(
    ("broken", "place"),
    [
        ("{{ custmer }}", "prompts/b.j2:1:4: 'custmer' is undefined"),
        ("x\n{% include 'gone.j2' %}", "prompts/b.j2:2:13: there is no template 'gone.j2'"),
        ("{% include 'b.j2' %}", "prompts/b.j2:1:1: template includes form a cycle"),
        ("{{ customer.upper() + 1 }}", "prompts/b.j2:1:1: can only concatenate str"),
    ],
)
def test_a_template_that_would_fail_in_a_request_is_rejected(tmp_path: Path, broken: str, place: str) -> None:
    with_input = one("b", instructions="{template: b.j2}", inputs="{customer: {required: true}}")
    project = Project(tmp_path, {"agents.d/b.yaml": with_input, "prompts/b.j2": "Hello {{ customer }}"})
    assert project.errors == []
    project.reload({"prompts/b.j2": broken})
    assert project.stale() == {"b"}
    assert project.live["b"].instructions("en", {"customer": "Anna"}, None) == "Hello Anna"
    assert any(error.startswith(place) for error in project.errors)


def test_a_variant_that_needs_undefined_variables_is_rejected(tmp_path: Path) -> None:
    project = Project(tmp_path, {**TEMPLATED, "prompts/b.zh.j2": "{{ nobody_gives_it }}"})
    assert "b" not in project.live
    assert any(error.startswith("prompts/b.zh.j2:1:4: 'nobody_gives_it' is undefined") for error in project.errors)


@pytest.mark.parametrize(
    ("template", "fits"),
    [
        ("{{ order.id }} {{ order.lines[0].price * 2 }} {{ order | tojson }}", True),
        ("{% for tag in tags %}{{ tag.name | upper }}{% endfor %}", True),
        ("{% if note %}{{ note.strip() }}{% endif %}", True),
        ("{{ note | default('none', true) }}", True),
        ("{{ user or 'nobody' }} {{ agent.name }} {{ tools | length }} {{ limits.max_steps }} {{ locale }}", True),
        ("{{ tone }}", True),
        ("{{ note.strip() }}", False),
        ("{{ user.name }}", False),
        ("{{ count + 'x' }}", False),
    ],
)
def test_templates_are_tried_with_possible_request_values(tmp_path: Path, template: str, fits: bool) -> None:
    text = """
        version: 1
        name: a
        description: d
        instructions: {template: a.j2, vars: {tone: short}}
        inputs:
          order: {type: object, required: true}
          tags: {type: array, required: true}
          note: {type: string}
          count: {type: integer, default: 3}
        """
    project = Project(tmp_path, {"agents.d/a.yaml": dedent(text), "prompts/a.j2": template})
    assert (project.errors == []) is fits
    assert ("a" in project.live) is fits


@pytest.mark.parametrize(
    ("name", "stale"),
    [
        ("react.j2", {"a", "p"}),
        ("error.zh.j2", {"a", "p"}),
        ("plan.j2", {"p"}),
        ("summary.j2", {"p"}),
        ("system.j2", set()),
    ],
)
@pytest.mark.parametrize("broken", ["{% if %}", "{{ nobody_gives_it }}"])
def test_an_invalid_runtime_template_is_rejected(tmp_path: Path, name: str, stale: set[str], broken: str) -> None:
    project = Project(tmp_path, {"agents.d/a.yaml": one("a"), "agents.d/p.yaml": one("p", executor="plan")})
    project.reload({f"prompts/{name}": "mine"})
    assert project.errors == []
    project.reload({f"prompts/{name}": broken})
    assert project.stale() == stale


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_a_template_that_is_not_utf_8_is_reported_with_its_line(tmp_path: Path, mark: bytes) -> None:
    project = Project(tmp_path, TEMPLATED)
    (tmp_path / "prompts/b.j2").write_bytes(mark + b"one\ncaf\xe9")
    project.reload()
    assert project.stale() == {"b"}
    assert "prompts/b.j2:2: not UTF-8: byte 0xe9" in project.errors


@pytest.mark.parametrize("text", ["one\ntwo\n", "one\n{{ agent.name }}\n"])
def test_a_byte_order_mark_is_no_part_of_a_template(tmp_path: Path, text: str) -> None:
    project = Project(tmp_path, {"agents.d/a.yaml": one("a", instructions="{template: t.j2}"), "prompts/t.j2": text})
    before = project.reload().agents["a"]
    (tmp_path / "prompts/t.j2").write_bytes(b"\xef\xbb\xbf" + text.encode())
    after = project.reload().agents["a"]
    assert before.digest == after.digest
    assert project.errors == []


# --- plugins


def test_tools_of_a_plugin_are_available(tmp_path: Path) -> None:
    project = Project(tmp_path, {"plugins/orders.py": ORDERS, "agents.d/clerk.yaml": USES_ORDERS})
    assert list(project.catalog.current.tools) == ["echo", "orders.lookup"]
    assert list(project.live["clerk"].toolset.offered) == ["orders.lookup"]


@pytest.mark.parametrize(
    "broken", ["def f(:\n", "raise RuntimeError\n", "import sys; sys.exit()\n", "import nowhere_\n"]
)
def test_a_broken_plugin_keeps_its_last_good_tools(tmp_path: Path, broken: str) -> None:
    project = Project(tmp_path, {"plugins/orders.py": ORDERS, "agents.d/clerk.yaml": USES_ORDERS})
    before = project.live["clerk"]
    project.reload({"plugins/orders.py": broken})
    assert project.live["clerk"] is before
    assert [error.partition(": ")[0].split(":")[0] for error in project.errors] == ["plugins/orders.py"]
    project.reload({"agents.d/clerk.yaml": USES_ORDERS + "executor: plan\n"})
    assert (list(project.live["clerk"].toolset.offered), project.stale()) == (["orders.lookup"], set())
    project.reload({"plugins/orders.py": PLUGIN.format("Fixed.")})
    assert project.live["clerk"].toolset.offered["orders.lookup"].definition.description == "Fixed."
    assert project.errors == []


def test_a_plugin_that_never_loaded_provides_no_tools(tmp_path: Path) -> None:
    project = Project(tmp_path, {"plugins/orders.py": "1 / 0", "agents.d/clerk.yaml": USES_ORDERS, **THREE})
    assert list(project.live) == ["a", "b", "c"]
    assert [error.split(":")[0] for error in project.errors] == ["agents.d/clerk.yaml", "plugins/orders.py"]


def test_an_agent_whose_tool_disappeared_keeps_its_last_good_version(tmp_path: Path) -> None:
    project = Project(tmp_path, {"plugins/orders.py": ORDERS, "agents.d/clerk.yaml": USES_ORDERS, **THREE})
    before = project.live["clerk"].toolset.offered["orders.lookup"]
    project.reload({"plugins/orders.py": ORDERS.replace("def lookup", "def find")})
    assert project.stale() == {"clerk"}
    assert project.live["clerk"].toolset.offered["orders.lookup"] is before
    assert project.errors == [
        "agents.d/clerk.yaml:6:24: there is no tool 'orders.lookup'; there are: echo, orders.find"
    ]
    project.reload({"plugins/orders.py": ORDERS})
    assert (project.stale(), project.errors) == (set(), [])


def test_an_agent_keeps_its_tools_when_their_plugin_is_deleted(tmp_path: Path) -> None:
    project = Project(tmp_path, {"plugins/orders.py": ORDERS, "agents.d/clerk.yaml": USES_ORDERS})
    project.reload(delete=("plugins/orders.py",))
    assert project.stale() == {"clerk"}
    assert project.live["clerk"].toolset.offered["orders.lookup"].function("7") == "7"
    assert "orders.lookup" not in project.catalog.current.tools


def test_a_plugin_edit_rebuilds_only_the_agents_that_use_its_tools(tmp_path: Path) -> None:
    narrow = {"agents.d/a.yaml": one("a", skill_policy="{allow: [echo]}")}
    project = Project(tmp_path, {"plugins/orders.py": ORDERS, "agents.d/clerk.yaml": USES_ORDERS, **narrow})
    before = project.live["a"]
    project.reload({"plugins/orders.py": PLUGIN.format("New.")})
    assert project.live["a"] is before
    assert project.last_changes() == ([], ["clerk"], [])


def test_a_new_plugin_reaches_the_agents_that_allow_its_tools(tmp_path: Path) -> None:
    project = Project(tmp_path, {"agents.d/a.yaml": one("a", skill_policy="{allow: ['orders.*']}")})
    project.reload({"plugins/orders.py": ORDERS})
    assert list(project.live["a"].toolset.offered) == ["orders.lookup"]


def test_helper_files_are_not_plugins(tmp_path: Path) -> None:
    hidden = {"plugins/_helpers.py": "1 / 0", "plugins/.x.py": "1 / 0", "plugins/__pycache__/y.py": "1 / 0"}
    project = Project(tmp_path, {**hidden, "plugins/readme.txt": "x"})
    assert (project.errors, list(project.catalog.current.tools)) == ([], ["echo"])


@pytest.mark.conformance(35)
def test_a_helper_file_can_be_imported_and_its_edits_take_effect(tmp_path: Path) -> None:
    uses = "from ._rates import RATE\n" + ORDERS + "    assert RATE\n"
    project = Project(tmp_path, {"plugins/orders.py": uses, "plugins/_rates.py": "RATE = 2"})
    assert project.errors == []
    before = project.catalog.current.tools["orders.lookup"]
    project.reload({"plugins/_rates.py": "RATE = 3"})
    assert (project.errors, project.catalog.current.tools["orders.lookup"] is before) == ([], False)


COLLIDING = ORDERS.replace("@tool", '@tool(name="b__c")')


def test_the_live_one_of_two_plugins_with_one_wire_name_stays(tmp_path: Path) -> None:
    project = Project(tmp_path, {"plugins/a__b.py": ORDERS.replace("def lookup", "def c"), **THREE})
    assert "a__b.c" in project.catalog.current.tools
    project.reload({"plugins/a.py": COLLIDING})
    assert list(project.catalog.current.tools) == ["echo", "a__b.c"]
    assert project.errors == ["plugins/a.py: tools 'a.b__c' and 'a__b.c' share the provider name 'a__b__c'"]
    assert not project.stale()
    project.reload(delete=("plugins/a__b.py",))
    assert (list(project.catalog.current.tools), project.errors) == (["echo", "a.b__c"], [])


def test_a_plugin_that_takes_a_used_tool_name_keeps_its_last_good_tools(tmp_path: Path) -> None:
    project = Project(tmp_path, {"plugins/a__b.py": ORDERS.replace("def lookup", "def c"), "plugins/a.py": ORDERS})
    project.reload({"plugins/a.py": COLLIDING})
    assert list(project.catalog.current.tools) == ["echo", "a.lookup", "a__b.c"]


def test_two_plugins_with_one_file_name_are_both_rejected_and_nothing_else(tmp_path: Path) -> None:
    files = {"plugins/x/orders.py": ORDERS, "plugins/y/orders.py": ORDERS, "plugins/fine.py": ORDERS}
    project = Project(tmp_path, files)
    assert list(project.catalog.current.tools) == ["echo", "fine.lookup", "orders.lookup"]
    assert project.errors == ["plugins/y/orders.py: duplicate tool name 'orders.lookup'"]


# --- which files are read


def test_hidden_files_backups_and_test_cases_are_not_agents(tmp_path: Path) -> None:
    names = (".a.yaml", "_a.yaml", "a.yaml~", "a.test.yaml", "a.test.yml", "a.txt", ".git/a.yaml", "a.yaml.swp", "4913")
    project = Project(tmp_path, {f"agents.d/{name}": BAD for name in names} | {"agents.d/x/y/deep.yml": one("deep")})
    assert (list(project.live), project.errors) == (["deep"], [])


def test_a_folder_without_anything_is_an_empty_generation(tmp_path: Path) -> None:
    project = Project(tmp_path)
    assert (project.catalog.current.number, dict(project.live), project.errors) == (1, {}, [])


def test_one_agent_file_is_a_project(tmp_path: Path) -> None:
    write(tmp_path, {"one.yaml": one("a"), "two.yaml": one("b"), "agents.d/c.yaml": one("c")})
    project = Project(tmp_path / "one.yaml")
    assert {name: agent.path for name, agent in project.live.items()} == {"a": "one.yaml"}
    write(tmp_path, {"one.yaml": BAD})
    project.reload()
    assert project.stale() == {"a"}
    assert project.errors[0].startswith("one.yaml:2:7: ")
    (tmp_path / "one.yaml").unlink()
    project.reload()
    assert project.stale() == {"a"}
    assert project.errors == ["one.yaml: cannot be read: No such file or directory"]


def _fifo(path: Path) -> None:
    os.mkfifo(path)


def _dangling(path: Path) -> None:
    path.symlink_to("nowhere.yaml")


def _loop(path: Path) -> None:
    path.symlink_to(path.name)


def _device(path: Path) -> None:
    path.symlink_to("/dev/null")


def _outsider(path: Path) -> None:
    outside = path.parent.parent / "outside.yaml"
    outside.write_text(one("b", "Outside."))
    path.symlink_to(outside)


def _huge(path: Path) -> None:
    path.write_text(one("b") + "#" * (1 << 20))


@pytest.mark.conformance(41)
@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (_fifo, "not a regular file"),
        (_dangling, "No such file or directory"),
        (_loop, "Too many levels of symbolic links"),
        (_device, "symbolic link points outside its folder"),
        (_outsider, "symbolic link points outside its folder"),
        (_huge, "larger than 1048576 bytes"),
    ],
)
def test_an_unreadable_file_is_reported_and_keeps_the_last_good_version(
    tmp_path: Path, make: object, reason: str
) -> None:
    assert callable(make)
    project = Project(tmp_path, THREE)
    (tmp_path / "agents.d/b.yaml").unlink()
    make(tmp_path / "agents.d/b.yaml")
    project.reload({"agents.d/c.yaml": one("c", "New.")})
    assert project.errors == [f"agents.d/b.yaml: cannot be read: {reason}"]
    assert (list(project.live), project.stale()) == (["a", "b", "c"], {"b"})
    assert project.live["c"].spec.description == "New."


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
@pytest.mark.parametrize("path", ["agents.d/x/b.yaml", "agents.d/x", "agents.d"])
def test_a_file_without_read_permission_keeps_the_last_good_version(tmp_path: Path, path: str) -> None:
    project = Project(tmp_path, {"agents.d/x/b.yaml": one("b")})
    (tmp_path / path).chmod(0)
    try:
        project.reload()
    finally:
        (tmp_path / path).chmod(0o700)
    assert project.errors == [f"{path}: cannot be read: Permission denied"]
    assert project.stale() == {"b"}


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
@pytest.mark.parametrize("path", ["plugins/x/orders.py", "plugins/x", "plugins"])
def test_a_plugin_without_read_permission_keeps_its_tools(tmp_path: Path, path: str) -> None:
    project = Project(tmp_path, {"plugins/x/orders.py": ORDERS})
    (tmp_path / path).chmod(0)
    try:
        project.reload()
    finally:
        (tmp_path / path).chmod(0o700)
    assert "orders.lookup" in project.catalog.current.tools


def test_an_unreadable_plugin_or_template_keeps_its_last_good_version(tmp_path: Path) -> None:
    project = Project(tmp_path, {**TEMPLATED, "plugins/orders.py": ORDERS, "agents.d/clerk.yaml": USES_ORDERS})
    for path in ("plugins/orders.py", "prompts/b.j2"):
        (tmp_path / path).unlink()
        os.mkfifo(tmp_path / path)
    project.reload()
    assert "orders.lookup" in project.catalog.current.tools
    assert project.stale() == {"b"}
    assert project.live["b"].instructions("en", {}, None) == "b"


def test_a_folder_named_like_an_agent_is_a_folder(tmp_path: Path) -> None:
    project = Project(tmp_path, {"agents.d/x.yaml/a.yaml": one("a")})
    assert (list(project.live), project.errors) == (["a"], [])


def test_a_link_inside_the_folder_is_followed(tmp_path: Path) -> None:
    """Kubernetes mounts files as links into a hidden folder, which is itself a link."""
    write(tmp_path, {"agents.d/..2026/a.yaml": one("a")})
    (tmp_path / "agents.d/..data").symlink_to("..2026")
    (tmp_path / "agents.d/a.yaml").symlink_to("..data/a.yaml")
    project = Project(tmp_path)
    assert (list(project.live), project.errors) == (["a"], [])


def test_the_folders_themselves_may_be_links(tmp_path: Path) -> None:
    write(tmp_path / "elsewhere", {"a.yaml": one("a")})
    (tmp_path / "project").mkdir()
    (tmp_path / "project/agents.d").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "link").symlink_to("project")
    assert list(Project(tmp_path / "link").live) == ["a"]


@pytest.mark.parametrize("name", [b"caf\xe9.yaml", b"caf\xe9/b.yaml"])
def test_a_file_name_that_is_not_utf_8_is_reported_and_other_files_load(tmp_path: Path, name: bytes) -> None:
    path = os.path.join(os.fsencode(tmp_path), b"agents.d", name)  # noqa: PTH118 - a Path holds no such name as bytes
    os.makedirs(os.path.dirname(path))  # noqa: PTH103, PTH120 - as above
    with open(path, "w") as file:  # noqa: PTH123 - as above
        file.write(one("b"))
    project = Project(tmp_path, {"agents.d/a.yaml": one("a")})
    assert list(project.live) == ["a"]
    assert project.errors == [
        f"agents.d/{name.decode(errors='backslashreplace')}: cannot be read: the file name is not UTF-8"
    ]
