"""A context whose object need not be kept: what it gave holds it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from functools import wraps
from types import TracebackType
from typing import ParamSpec, Protocol, TypeVar


class Held(Protocol):
    """What is given out by a context, and refers back to it."""

    context: object


P = ParamSpec("P")
T = TypeVar("T", bound=Held)


class _Opening(AbstractAsyncContextManager[T]):
    def __init__(self, context: AbstractAsyncContextManager[T]) -> None:
        self._context = context

    async def __aenter__(self) -> T:
        given = await self._context.__aenter__()
        given.context = self._context
        return given

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return await self._context.__aexit__(kind, error, trace)


def held(
    context: Callable[P, AbstractAsyncContextManager[T]],
) -> Callable[P, AbstractAsyncContextManager[T]]:
    """Decorate a context's function: a program that enters it by hand, without `async with`, may drop the context.

    A context made of a generator would be closed by the garbage collector then, under whoever uses what it gave.
    """

    @wraps(context)
    def opened(*args: P.args, **options: P.kwargs) -> AbstractAsyncContextManager[T]:
        return _Opening(context(*args, **options))

    return opened
