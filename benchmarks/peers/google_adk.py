"""google-adk: an agent and a runner with sessions in memory, on its own client of the Chat Completions API."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from benchmarks.peers.job import INSTRUCTIONS, KEY, MODEL, PROMPT, History, Run, ToolFunction

TITLE = "google-adk"
PACKAGES = ("google-adk==2.13.0", "openai==3.54.0")
_MAX_CALLS = 1000
_APP, _USER = "app", "user"


@asynccontextmanager
async def opened(url: str, tools: Sequence[ToolFunction], history: History) -> AsyncIterator[Run]:
    """Create an agent. Each run has a session of its own, to which earlier messages are appended as events."""
    from google.adk.agents import LlmAgent, RunConfig
    from google.adk.events import Event
    from google.adk.integrations.openai import OpenAILlm
    from google.adk.runners import InMemoryRunner
    from google.genai.types import Content, Part

    model = OpenAILlm(model=MODEL, base_url=url, api_key=KEY)
    agent = LlmAgent(name="worker", model=model, instruction=INSTRUCTIONS, tools=list(tools))
    runner = InMemoryRunner(agent=agent, app_name=_APP)
    sessions, config = runner.session_service, RunConfig(max_llm_calls=_MAX_CALLS)
    roles = {"user": ("user", "user"), "assistant": (agent.name, "model")}
    messages = [(*roles[role], text) for role, text in (*history, ("user", PROMPT))]
    *earlier, prompt = [
        Event(author=author, content=Content(role=role, parts=[Part(text=text)])) for author, role, text in messages
    ]

    async def run() -> str:
        session = await sessions.create_session(app_name=_APP, user_id=_USER)
        for event in earlier:
            await sessions.append_event(session, event)
        answer = ""
        async for event in runner.run_async(
            user_id=_USER, session_id=session.id, new_message=prompt.content, run_config=config
        ):
            if event.is_final_response() and event.content and event.content.parts:
                answer = event.content.parts[0].text or ""
        await sessions.delete_session(app_name=_APP, user_id=_USER, session_id=session.id)
        return answer

    try:
        yield run
    finally:
        await runner.close()
