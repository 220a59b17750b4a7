"""A program: an agent of another server, on the SDK's own A2A server. What it does follows from the message.

Arguments: a file to which it appends what happens to its tasks, and its binding. It prints its port.

`say TEXT`, `data`, `text and data`, `empty text and data`, `file`, `ask` (a question, then `said ANSWER`), `ask twice`,
`endless`, `sign` (waits until a file named `signed` appears beside the log), `slow` (the same, at work), `work` (for
ever), `fail`, `reject`, `big`, `message` (no task).
"""

from __future__ import annotations

import asyncio
import socket
import sys
from pathlib import Path

import uvicorn
from a2a import types
from a2a.helpers import get_message_text, new_data_part, new_raw_part, new_text_message, new_text_part
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.events import EventQueue
from a2a.server.request_handlers import DefaultRequestHandlerV2
from a2a.server.routes import create_agent_card_routes, create_jsonrpc_routes, create_rest_routes
from a2a.server.tasks import InMemoryTaskStore, TaskUpdater
from starlette.applications import Starlette

LOG = Path(sys.argv[1])
PNG = b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR\x00\x00\x00\x01\x00\x00\x00\x01"
State = types.TaskState


def note(text: str) -> None:
    with LOG.open("a", encoding="utf-8") as log:
        log.write(f"{text}\n")


class Executor(AgentExecutor):
    """Works on tasks."""

    def __init__(self) -> None:
        self.orders: dict[str, str] = {}
        self.answers: dict[str, list[str]] = {}

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        assert context.message
        assert context.task_id
        assert context.context_id
        task, text = context.task_id, get_message_text(context.message)
        updates = TaskUpdater(event_queue, task, context.context_id)
        if context.current_task is None:
            if text == "message":
                await event_queue.enqueue_event(new_text_message("without a task"))
                return
            status = types.TaskStatus(state=State.TASK_STATE_SUBMITTED)
            await event_queue.enqueue_event(types.Task(id=task, context_id=context.context_id, status=status))
            self.orders[task], self.answers[task] = text, []
            note(f"new {text}")
        else:
            self.answers[task].append(text)
            note(f"answer {text}")
        await updates.start_work(updates.new_agent_message([new_text_part("working on it")]))
        await self.work(updates, self.orders[task], self.answers[task])

    async def work(self, updates: TaskUpdater, order: str, answers: list[str]) -> None:
        questions = {"ask": 1, "ask twice": 2, "endless": 99}.get(order, 0)
        said = updates.new_agent_message
        if len(answers) < questions:
            await updates.requires_input(said([new_text_part(f"{{{{ colour }}}} {len(answers) + 1}?\x1b[31m")]))
        elif order == "sign":
            await updates.requires_auth(said([new_text_part("Sign it at https://example.com/sign")]))
            await self.signed()
            await updates.add_artifact([new_text_part("signed")])
            await updates.complete()
        elif order == "slow":
            await self.signed()
            await updates.add_artifact([new_text_part("slow but sure")])
            await updates.complete()
        elif order == "work":
            await asyncio.Event().wait()
        elif order in ("fail", "reject"):
            ended = {"fail": updates.failed, "reject": updates.reject}[order]
            await ended(said([new_text_part("no money left")]))
        else:
            await updates.add_artifact(parts_of(order, answers))
            await updates.complete()

    async def signed(self) -> None:
        while not (LOG.parent / "signed").exists():  # noqa: ASYNC110 - another process creates the file
            await asyncio.sleep(0.02)

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        assert context.task_id
        assert context.context_id
        note(f"cancel {self.orders[context.task_id]}")
        await TaskUpdater(event_queue, context.task_id, context.context_id).cancel()


def parts_of(order: str, answers: list[str]) -> list[types.Part]:
    """Return the parts of an answer."""
    match order:
        case "data":
            return [new_data_part({"total": 80, "paid": True})]
        case "text and data":
            return [new_text_part("paid late"), new_data_part({"total": 80})]
        case "empty text and data":
            return [new_text_part(""), new_data_part({"total": 80})]
        case "file":
            return [new_text_part("a picture"), new_raw_part(PNG, media_type="image/png", filename="dot.png")]
        case "big":
            return [new_text_part("x" * 10_000_000)]
    return [new_text_part(f"said {' and '.join(answers)}" if answers else order.removeprefix("say "))]


def main() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
        url = f"http://127.0.0.1:{port}/billing"
        card = types.AgentCard(
            name="billing",
            description="Pays invoices.",
            version="1",
            supported_interfaces=[types.AgentInterface(url=url, protocol_binding=sys.argv[2], protocol_version="1.0")],
            capabilities=types.AgentCapabilities(streaming=True),
            skills=[types.AgentSkill(id="billing", name="billing", description="Pays invoices.", tags=["billing"])],
            default_input_modes=["text/plain"],
            default_output_modes=["text/plain"],
        )
        handler = DefaultRequestHandlerV2(Executor(), InMemoryTaskStore(), card)
        app = Starlette(
            routes=[
                *create_agent_card_routes(card),
                *(create_jsonrpc_routes(handler, "/billing") if sys.argv[2] == "JSONRPC" else ()),
                *(create_rest_routes(handler, path_prefix="/billing") if sys.argv[2] != "JSONRPC" else ()),
            ]
        )
        listener.listen()
        sys.stdout.write(f"{port}\n")
        sys.stdout.flush()
        uvicorn.Server(uvicorn.Config(app, log_level="critical")).run(sockets=[listener])


if __name__ == "__main__":
    main()
