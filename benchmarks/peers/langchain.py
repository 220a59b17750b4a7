"""langchain's `create_agent`, which executes on LangGraph, with `ChatOpenAI` and without LangSmith."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from benchmarks.peers.job import (
    ANSWER,
    DURABLE_STEPS,
    INSTRUCTIONS,
    KEY,
    MODEL,
    PROMPT,
    Durable,
    History,
    Run,
    ToolFunction,
)

TITLE = "langchain"
DURABLE_TITLE = "LangGraph with its checkpointer"
PACKAGES = (
    "langchain==1.4.7",
    "langchain-core==1.7.2",
    "langchain-openai==1.7.3",
    "langgraph==1.2.22",
    "langgraph-checkpoint-sqlite==3.1.2",
    "langgraph-checkpoint-postgres==3.2.0",
    "psycopg[binary]==3.3.9",
    "openai==3.54.0",
)
_MAX_TICKS = 2000


@asynccontextmanager
async def opened(url: str, tools: Sequence[ToolFunction], history: History) -> AsyncIterator[Run]:
    """Create an agent."""
    os.environ["LANGSMITH_TRACING"] = "false"
    from langchain.agents import create_agent
    from langchain_core.messages import AIMessage, HumanMessage
    from langchain_core.tools import StructuredTool
    from langchain_openai import ChatOpenAI

    earlier = [HumanMessage(text) if role == "user" else AIMessage(text) for role, text in history]
    model = ChatOpenAI(model=MODEL, base_url=url, api_key=KEY, use_responses_api=False)
    described = [StructuredTool.from_function(coroutine=tool, parse_docstring=True) for tool in tools]
    agent = create_agent(model, tools=described, system_prompt=INSTRUCTIONS)

    async def run() -> str:
        state = await agent.ainvoke({"messages": [*earlier, HumanMessage(PROMPT)]}, {"recursion_limit": _MAX_TICKS})
        text: str = state["messages"][-1].content
        return text

    yield run


@asynccontextmanager
async def durable(database: str, tool: ToolFunction, asked: Callable[[], object]) -> AsyncIterator[Durable]:
    """Compile a graph of two nodes, the model and the tool, which costs less than an agent of `create_agent`."""
    from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
    from langgraph.graph import END, START, MessagesState, StateGraph

    async def model(state: Any) -> dict[str, Any]:
        asked()
        turn = sum(message.type == "ai" for message in state["messages"])
        call = {"id": f"c{turn}", "name": "note", "args": {"n": turn}}
        return {"messages": [AIMessage("", tool_calls=[call]) if turn < DURABLE_STEPS else AIMessage(ANSWER)]}

    async def tools(state: Any) -> dict[str, Any]:
        calls = state["messages"][-1].tool_calls
        return {"messages": [ToolMessage(await tool(**call["args"]), tool_call_id=call["id"]) for call in calls]}

    graph = StateGraph(MessagesState)
    graph.add_node("model", model)
    graph.add_node("tools", tools)
    graph.add_edge(START, "model")
    graph.add_conditional_edges("model", lambda state: "tools" if state["messages"][-1].tool_calls else END)
    graph.add_edge("tools", "model")
    async with _saver(database) as saver:
        compiled = graph.compile(checkpointer=saver)

        async def execute(key: str, messages: dict[str, Any] | None) -> str:
            config = {"configurable": {"thread_id": key}, "recursion_limit": _MAX_TICKS}
            text: str = (await compiled.ainvoke(messages, config))["messages"][-1].content
            return text

        async def run(key: str) -> str:
            return await execute(key, {"messages": [HumanMessage(PROMPT)]})

        async def resume(key: str) -> str:
            return await execute(key, None)

        yield Durable(run, resume)


@asynccontextmanager
async def _saver(database: str) -> AsyncIterator[Any]:
    if database.startswith("sqlite"):
        from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

        async with AsyncSqliteSaver.from_conn_string(database.removeprefix("sqlite:///")) as saver:
            yield saver
    else:
        from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver

        async with AsyncPostgresSaver.from_conn_string(database) as saver:
            await saver.setup()
            yield saver
