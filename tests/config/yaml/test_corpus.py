"""Files that were once valid remain valid with the same meaning; the corpus only grows."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import yaml

from framework import Runtime
from framework.config.yaml.parse import parse_agent
from framework.types.spec import AgentSpec
from tests.support.paths import TESTS

CORPUS = TESTS / "config/yaml/corpus" / "v1"
FILES = sorted(CORPUS.glob("*.yaml"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_file_of_version_1_keeps_its_meaning(path: Path) -> None:
    spec, _ = parse_agent(path.name, path.read_bytes())
    said = spec.model_dump(mode="json", by_alias=True, exclude_unset=True)
    assert said.keys() == yaml.safe_load(path.read_bytes()).keys()
    assert AgentSpec.model_validate(said) == spec, "what is written out is read as the same"


def test_the_corpus_contains_every_key_of_the_format() -> None:
    spec, _ = parse_agent("full.yaml", (CORPUS / "full.yaml").read_bytes())
    assert spec.model_fields_set == set(AgentSpec.model_fields)
    assert spec.runtime_policy.model_fields_set == set(type(spec.runtime_policy).model_fields)
    limits = spec.runtime_policy
    assert (limits.timeout, limits.model_timeout, limits.tool_timeout) == (300.0, 90.0, 0.5)
    assert limits.max_repeated_calls is None


def test_the_corpus_is_a_valid_project(tmp_path: Path) -> None:
    (tmp_path / "agents.d").mkdir()
    (tmp_path / "prompts").mkdir()
    (tmp_path / "prompts/system.j2").write_text("{{ tone }} {{ customer }} {{ limit }}")
    (tmp_path / "agentsd.yaml").write_text("budgets: {team: {max_cost_usd: 5, per: day}}\n")
    for path in FILES:
        (tmp_path / "agents.d" / path.name).write_bytes(path.read_bytes())

    async def main() -> None:
        async with Runtime.open(tmp_path, watch=False) as runtime:
            assert runtime.catalog.problems == ()
            assert runtime.catalog.current.agents.keys() == {"full", "minimal"}

    asyncio.run(main())
