"""Keeps the context manager of an opened object alive as long as the object."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from functools import wraps
from types import TracebackType
from typing import Generic, ParamSpec, Protocol, TypeVar

P = ParamSpec("P")


class _Opened(Protocol):
    """An object that refers to the context manager that yielded it."""

    context: object


R = TypeVar("R", bound=_Opened)


class _Open(AbstractAsyncContextManager[R], Generic[R]):
    """Context manager whose object holds a reference to it."""

    def __init__(self, context: AbstractAsyncContextManager[R]) -> None:
        self._context = context

    async def __aenter__(self) -> R:
        opened = await self._context.__aenter__()
        opened.context = self._context
        return opened

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        return await self._context.__aexit__(kind, error, traceback)


def keep_open(
    context: Callable[P, AbstractAsyncContextManager[R]],
) -> Callable[P, AbstractAsyncContextManager[R]]:
    """Keep the context manager alive as long as the object that it yields.

    A program that calls `__aenter__` itself may drop the context manager. The garbage collector would then close the
    generator behind it while the object is in use.
    """

    @wraps(context)
    def open_object(*args: P.args, **options: P.kwargs) -> AbstractAsyncContextManager[R]:
        return _Open(context(*args, **options))

    return open_object
