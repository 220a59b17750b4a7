"""`/agent/agents/{name}`: what an agent may do, its inputs, its prompt, and the problems of its files."""

from __future__ import annotations

from pathlib import Path

from tests.support.projects import agent, write
from tests.support.served import served


def test_an_agent_is_shown_with_its_policy_inputs_prompt_and_problems(tmp_path: Path) -> None:
    keys = {
        "instructions": "{template: one.j2}",
        "inputs": "{who: {type: string, required: true, description: the reader}}",
        "skill_policy": "{allow: [echo, calculator], ask: [echo]}",
    }
    prompts = {"prompts/one.j2": "You help {{ who }}. api_key: hunter2hunter2", "prompts/one.de.j2": "Hilf {{ who }}."}
    write(
        tmp_path,
        {
            "agents.d/one.yaml": agent("one", model="offline", **keys),
            "agents.d/two.yaml": agent("two", model="offline"),
            **prompts,
        },
    )
    with served(tmp_path) as server:
        found = server.get("/agent/agents/one")
        assert (found["name"], found["generation"], len(found["digest"])) == ("one", 1, 16)
        tools = {tool["tool"]: tool["verdict"] for tool in found["policy"]["tools"]}
        assert (tools["echo"], tools["calculator"], tools["write_file"]) == ("ask", "allow", "deny")
        assert found["policy"]["limits"]["max_steps"] == 10
        assert found["inputs"]["who"]["required"] is True
        prompt = found["prompt"]
        assert prompt["template"] == "one.j2"
        assert prompt["source"] == "You help {{ who }}. api_key: ***", "secrets in files are masked"
        assert "You help <who>." in prompt["rendered"]
        assert server.get("/agent/agents/one?locale=de")["prompt"]["rendered"].startswith("Hilf <who>.")
        assert found["problems"] == []
        with server.event_stream() as events:
            write(tmp_path, {"agents.d/two.yaml": "name: ["})
            next(events)
        problems = server.get("/agent/agents/two")["problems"]
        assert {problem["path"] for problem in problems} == {"agents.d/two.yaml"}
        assert server.get("/agent/agents/one")["problems"] == []
        missing = server.request("GET", "/agent/agents/onee")
        assert (missing.status_code, missing.json()["error"]["param"]) == (404, "agent")
        assert "did you mean one" in missing.json()["error"]["message"]
