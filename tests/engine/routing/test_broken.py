"""Messages for agents whose files have errors: they are given to no other agent, on any surface."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx2
import pytest

from framework import AgentBroken, RequestError, Runtime
from framework.testing import ScriptedModel
from tests.support.commands import agentsd
from tests.support.loopback import LOOPBACK
from tests.support.projects import agent, write
from tests.support.serving import serving

BROKEN = {
    "a reference": agent("billing", routing="{keywords: [invoice]}", fallback_models="[nope/x]"),
    "the shape": agent("billing", routing="{keywords: [invoice]}", budgetss="[team]"),
    "the rules": agent("billing", routing="{keywrods: [invoice]}"),
    "a misspelled section": agent("billing", rotuing="{keywords: [invoice]}"),
    "misplaced rules": agent("billing", keywords="[invoice]"),
    "a tab": agent("billing", routing="{keywords: [invoice]}") + "inputs:\n\tcity: {type: string}\n",
    "a tab, block style": agent("billing") + "routing:\n  keywords:\n    - invoice\ninputs:\n\tcity: {}\n",
    "a quote": agent("billing", description='"Bills', routing="{keywords: [invoice]}"),
}
"""Files of an agent `billing` that is for messages with `invoice`, by what is wrong with them."""


def shop(root: Path, billing: str) -> Path:
    return write(root, {"agents.d/assistant.yaml": agent("assistant"), "agents.d/billing.yaml": billing})


async def answer_of(root: Path, message: str, model: ScriptedModel | None = None, agent: str | None = None) -> str:
    models = {"scripted": ScriptedModel("done"), "router": model or ScriptedModel()}
    async with Runtime.open(root, models=models, watch=False) as runtime:
        return (await runtime.run(message, agent=agent)).agent


@pytest.mark.parametrize("billing", BROKEN.values(), ids=BROKEN.keys())
def test_a_message_that_a_broken_agents_rules_match_is_given_to_no_other(tmp_path: Path, billing: str) -> None:
    with pytest.raises(AgentBroken) as caught:
        asyncio.run(answer_of(shop(tmp_path, billing), "pay my invoice"))

    assert caught.value.names == ("billing",)
    assert {problem.path for problem in caught.value.problems} == {"agents.d/billing.yaml"}


@pytest.mark.parametrize("kind", ["a reference", "the shape", "a tab", "a tab, block style", "a quote"])
def test_a_message_for_others_is_answered_beside_a_broken_agent(tmp_path: Path, kind: str) -> None:
    assert asyncio.run(answer_of(shop(tmp_path, BROKEN[kind]), "hello")) == "assistant"


def test_the_rules_of_a_valid_agent_apply_beside_rules_that_cannot_be_read(tmp_path: Path) -> None:
    root = shop(tmp_path, BROKEN["the rules"])
    write(root, {"agents.d/parcels.yaml": agent("parcels", routing="{keywords: [parcel]}")})

    assert asyncio.run(answer_of(root, "where is my parcel")) == "parcels"


def test_a_valid_agent_with_a_higher_priority_gets_the_message(tmp_path: Path) -> None:
    root = shop(tmp_path, BROKEN["a reference"])
    write(root, {"agents.d/refunds.yaml": agent("refunds", routing="{keywords: [invoice], priority: 1}")})

    assert asyncio.run(answer_of(root, "pay my invoice")) == "refunds"


def test_a_broken_agent_that_is_named_is_not_unknown(tmp_path: Path) -> None:
    with pytest.raises(AgentBroken, match="agent 'billing' cannot be used: its file has errors"):
        asyncio.run(answer_of(shop(tmp_path, BROKEN["a tab"]), "hello", agent="billing"))


def test_the_only_valid_agent_is_not_the_only_agent(tmp_path: Path) -> None:
    """It would get the messages of a broken agent without rules, which would otherwise be named by the caller."""
    root = write(
        tmp_path, {"agents.d/notes.yaml": agent("notes", model="nope/x"), "agents.d/plans.yaml": agent("plans")}
    )

    with pytest.raises(AgentBroken, match=r"have errors \(notes\); correct them, or name one of: plans"):
        asyncio.run(answer_of(root, "write the notes"))


@pytest.mark.parametrize("settings", ["{}", "routing: {default_agent: assistant}"])
def test_a_broken_default_agent_has_no_replacement(tmp_path: Path, settings: str) -> None:
    files = {"agents.d/assistant.yaml": agent("assistant", model="nope/x"), "agents.d/plans.yaml": agent("plans")}
    write(tmp_path, {**files, "agentsd.yaml": settings})

    with pytest.raises(AgentBroken, match="agent 'assistant' would get this message"):
        asyncio.run(answer_of(tmp_path, "hello"))


def test_a_broken_fallback_agent_is_named_whatever_key_is_wrong(tmp_path: Path) -> None:
    files = {"agents.d/assistant.yaml": agent("assistant", confirm="high"), "agents.d/plans.yaml": agent("plans")}

    with pytest.raises(AgentBroken, match=r"agent 'assistant' would get this message \(no rule matches"):
        asyncio.run(answer_of(write(tmp_path, files), "hello"))


def test_a_conversation_is_not_continued_by_another_agent(tmp_path: Path) -> None:
    root = shop(tmp_path, agent("billing", routing="{keywords: [invoice]}"))
    models = {"scripted": ScriptedModel("1", "2")}
    store = f"sqlite:///{tmp_path / 'runs.db'}"

    async def main() -> None:
        async with Runtime.open(root, models=models, watch=False, store=store) as runtime:
            await runtime.run("pay my invoice", conversation="c")
        write(root, {"agents.d/billing.yaml": BROKEN["a reference"]})
        async with Runtime.open(root, models=models, watch=False, store=store) as runtime:
            await runtime.run("and the rest", conversation="c")

    with pytest.raises(AgentBroken, match="answered last in this conversation"):
        asyncio.run(main())


def test_the_routing_model_may_choose_a_broken_agent_which_gets_nothing(tmp_path: Path) -> None:
    root = shop(tmp_path, agent("billing", description="Bills.", model="nope/x"))
    write(root, {"agentsd.yaml": "routing: {model: router}"})
    router = ScriptedModel('{"agent": "billing", "reason": "it is about bills"}')

    with pytest.raises(AgentBroken, match=r"agent 'billing' would get this message \(it is about bills\)"):
        asyncio.run(answer_of(root, "a bill", router))
    assert "- billing: Bills." in router.requests[0].messages[0].content


def test_a_file_that_is_added_later_does_not_change_what_others_answer(tmp_path: Path) -> None:
    """An edit never stops what works: the file takes effect when it is valid, as every other."""

    async def main() -> list[str]:
        root = write(tmp_path, {"agents.d/assistant.yaml": agent("assistant")})
        async with Runtime.open(root, models={"scripted": ScriptedModel("1", "2")}, watch=False) as runtime:
            before = (await runtime.run("pay my invoice")).agent
            write(root, {"agents.d/billing.yaml": BROKEN["the shape"]})
            await runtime.reload()
            return [before, (await runtime.run("pay my invoice")).agent]

    assert asyncio.run(main()) == ["assistant", "assistant"]


def test_an_agent_that_is_corrected_gets_its_messages_and_keeps_them_when_it_breaks_again(tmp_path: Path) -> None:
    async def main() -> list[str]:
        root, found = shop(tmp_path, BROKEN["a tab"]), list[str]()
        async with Runtime.open(root, models={"scripted": ScriptedModel(*"123")}, watch=False) as runtime:
            for text in (BROKEN["a quote"], agent("billing", routing="{keywords: [invoice]}"), BROKEN["a tab"]):
                write(root, {"agents.d/billing.yaml": text})
                await runtime.reload()
                try:
                    found.append((await runtime.run("pay my invoice")).agent)
                except RequestError as error:  # pragma: no cover - would be the wrong error
                    found.append(str(error))
                except AgentBroken:
                    found.append("broken")
        return found

    assert asyncio.run(main()) == ["broken", "billing", "billing"]


# --- over HTTP


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/agent/chat", {"message": "pay my invoice"}, 503),
        ("/agent/chat", {"message": "hello", "agent": "billing"}, 503),
        ("/v1/chat/completions", {"model": "billing", "messages": [{"role": "user", "content": "hello"}]}, 503),
        ("/v1/chat/completions", {"model": "auto", "messages": [{"role": "user", "content": "pay my invoice"}]}, 422),
    ],
)
def test_a_route_answers_with_the_agent_that_is_broken(
    tmp_path: Path, path: str, body: dict[str, object], status: int
) -> None:
    """A run that is routed in the queue fails there: `/v1` answers 422, which clients do not retry."""

    async def main() -> tuple[int, str, int]:
        root, model = shop(tmp_path, BROKEN["the shape"]), ScriptedModel("done")
        async with (
            serving(root, models={"scripted": model}) as server,
            httpx2.AsyncClient(base_url=server.url, **LOOPBACK) as client,
        ):
            response = await client.post(path, json=body)
        return response.status_code, response.json()["error"]["code"], len(model.requests)

    assert asyncio.run(main()) == (status, "agent_broken", 0)


# --- on the command line


@pytest.mark.parametrize(
    "arguments",
    [["run", "pay my invoice"], ["run", "-a", "billing", "hello"], ["run", "agents.d/billing.yaml", "hello"], ["chat"]],
    ids=["run", "run --agent", "run FILE", "chat"],
)
def test_a_command_says_what_is_broken_once_and_exits_with_78(tmp_path: Path, arguments: list[str]) -> None:
    root = shop(tmp_path, BROKEN["the shape"].replace("scripted", "offline"))
    write(root, {"agents.d/assistant.yaml": agent("assistant", model="offline")})

    done = agentsd(*arguments, cwd=root, stdin="pay my invoice\n")

    assert (done.returncode, done.stdout) == (78, "")
    assert done.stderr.count("unknown key 'budgetss'") == 1
    assert "billing" in done.stderr.partition("error: ")[2]


@pytest.mark.parametrize("command", ["explain", "agents show"])
def test_a_command_about_a_broken_agent_says_so(tmp_path: Path, command: str) -> None:
    done = agentsd(*command.split(), "billing", cwd=shop(tmp_path, BROKEN["the shape"]))

    assert done.returncode == 78
    assert "agent 'billing' cannot be used: its file has errors" in done.stderr
