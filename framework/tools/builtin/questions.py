"""The tool `ask_user`: the run pauses until the user answers the model's question."""

from __future__ import annotations

from framework.tools.tool import ToolContext, tool
from framework.types.errors import ToolError

ASK_USER = "ask_user"
_MAX_QUESTION_CHARS = 2000
_MAX_CHOICES = 20
_MAX_CHOICE_CHARS = 200


@tool(risk="low", idempotent=True)
async def ask_user(question: str, choices: list[str] | None = None, *, context: ToolContext) -> str:
    """Ask the user a question and return the answer. Only for what no tool can find out and only the user can decide.

    Args:
        question: The question, understandable on its own.
        choices: The possible answers; omit for a free answer.
        context: The run.
    """
    if not question.strip() or len(question) > _MAX_QUESTION_CHARS:
        raise ToolError(f"the question has {len(question)} characters; ask one of 1 to {_MAX_QUESTION_CHARS}")
    offered = choices or []
    if len(offered) > _MAX_CHOICES or len(set(offered)) < len(offered):
        raise ToolError(f"there are {len(offered)} choices; offer at most {_MAX_CHOICES}, all different")
    if invalid := [choice for choice in offered if not choice.strip() or len(choice) > _MAX_CHOICE_CHARS]:
        raise ToolError(f"a choice has {len(invalid[0])} characters; offer choices of 1 to {_MAX_CHOICE_CHARS}")
    return await context.ask_human(question, offered)
