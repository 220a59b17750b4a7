"""`/agent/conversations/{id}/fork`: a new conversation with a part of the history of another."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any
from urllib.parse import quote

from framework.llm.client import ScriptedModel
from tests.support.projects import agent, write
from tests.support.runs_http import client_of


def test_a_message_is_edited_and_sent_again_in_a_fork_and_a_repetition_makes_no_second_one(tmp_path: Path) -> None:
    async def main() -> None:
        write(tmp_path, {"agents.d/one.yaml": agent("one")})
        async with client_of(tmp_path, ScriptedModel("a", "b", "c"), store=f"sqlite:///{tmp_path}/state.db") as client:
            runs = []
            for text in ("one", "two"):
                body = {"message": text, "conversation_id": "c"}
                runs.append((await client.post("chat", body))["run_id"])
            path, headers = "conversations/c/fork", {"idempotency-key": "k1"}
            fork = await client.post(path, {"before": runs[1]}, 201, headers=headers)
            assert {**fork, "conversation_id": ""} == {
                "conversation_id": "",
                "forked_from": "c",
                "agent": "one",
                "turns": 1,
            }
            assert await client.post(path, {"before": runs[1]}, 201, headers=headers) == fork
            error = await client.error("POST", path, 409, json={"after": runs[1]}, headers=headers)
            assert error["code"] == "idempotency_conflict"
            assert len((await client.get("conversations"))["conversations"]) == 2
            edited = {"message": "two, please", "conversation_id": fork["conversation_id"]}
            assert (await client.post("chat", edited))["response"] == "c"
            found = await client.get(f"conversations/{fork['conversation_id']}")
            assert found["forked_from"] == "c"
            assert [one["content"] for one in found["messages"]] == ["one", "a", "two, please", "c"]
            copied = (await client.get(f"runs?conversation_id={fork['conversation_id']}"))["runs"]
            assert [one["copied_from"] for one in copied] == [None, runs[0]]
            assert len((await client.get("runs"))["runs"]) == 3, "lists of all runs have no copies"
            assert (await client.get(f"runs/{copied[1]['run_id']}"))["output"] == "a"
            named = await client.post(path, {"messages": 2, "conversation_id": "ü 1"}, 201)
            assert (named["conversation_id"], named["turns"]) == ("ü 1", 1)
            wrong: list[tuple[dict[str, Any], int]] = [
                ({}, 400),
                ({"before": runs[0], "after": runs[0]}, 400),
                ({"before": "run_x"}, 400),
                ({"messages": 1}, 400),
                ({"after": runs[0], "conversation_id": "ü 1"}, 409),
            ]
            for refused, status in wrong:
                await client.error("POST", path, status, json=refused)

    asyncio.run(main())


def test_a_conversation_is_read_forked_and_deleted_whatever_its_id_contains(tmp_path: Path) -> None:
    async def main() -> None:
        write(tmp_path, {"agents.d/one.yaml": agent("one")})
        async with client_of(tmp_path, ScriptedModel("a", "b", "c")) as client:
            for name in ("customer/42", "/fork", "a?b#c"):
                run = (await client.post("chat", {"message": "hello", "conversation_id": name}))["run_id"]
                path = f"conversations/{quote(name, safe='')}"
                assert (await client.get(path))["conversation_id"] == name
                assert (await client.post(f"{path}/fork", {"after": run}, 201))["forked_from"] == name
                assert await client.delete(path) == {"conversation_id": name, "runs": 1}
                await client.error("GET", path, 404)

    asyncio.run(main())
