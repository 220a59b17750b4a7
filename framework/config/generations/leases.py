"""Who uses which generation: it is live, or runs hold it. With its last user go the uses of its plugins."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from framework.config.generations.generation import Generation
from framework.tools.plugins.lifecycle import PluginLease, PluginLifecycle
from framework.tools.plugins.loader import Plugin
from framework.types.errors import ConfigError
from framework.types.problem import Problem


class Lease:
    """A generation whose plugins are set up. `with lease as generation:` is a use of it, as often as wanted."""

    __slots__ = ("_remove", "_use", "_users", "generation")

    def __init__(self, generation: Generation, use: PluginLease, forget: Callable[[Lease], None]) -> None:
        self.generation = generation
        self._use, self._remove, self._users = use, forget, 0

    @property
    def failed(self) -> Mapping[Plugin, tuple[Problem, ...]]:
        """The plugins that could not be set up, and why."""
        return self._use.failed

    def __enter__(self) -> Generation:
        self._users += 1
        return self.generation

    def __exit__(self, *_: object) -> None:
        self._users -= 1
        if not self._users:
            self.release()

    def release(self) -> None:
        """End a use that nobody has any more, or that nobody has begun."""
        self._remove(self)
        self._use.release()


class Leases:
    """The generations in use; one of them is live."""

    def __init__(
        self, lifecycle: PluginLifecycle | None, first: Generation, on_unused: Callable[[], None] = lambda: None
    ) -> None:
        """Begin with a generation; `on_unused` is called whenever one is used no more."""
        self._lifecycle, self._on_unused = lifecycle, on_unused
        self._used: dict[int, Lease] = {}
        self.live = Lease(first, PluginLease(), self._remove)
        self.live.__enter__()

    async def acquire(self, generation: Generation) -> Lease:
        """Set up what a generation uses, where that is done at all; the lease says what `failed`."""
        use = await self._lifecycle.acquire(generation.plugins) if self._lifecycle else PluginLease()
        return Lease(generation, use, self._remove)

    async def reacquire(self, generation: Generation) -> Lease:
        """The lease of a generation that has been live; what was torn down since is set up again.

        Raises:
            ConfigError: that failed.
        """
        if known := self._used.get(generation.number):
            return known
        lease = await self.acquire(generation)
        if problems := [problem for found in lease.failed.values() for problem in found]:
            lease.release()
            raise ConfigError(f"the plugins of generation {generation.number} cannot be set up again", problems)
        if known := self._used.get(generation.number):  # somebody else was faster
            lease.release()
            return known
        self._used[generation.number] = lease
        return lease

    def publish(self, lease: Lease) -> None:
        """Let a generation take the place of the one that is live."""
        before, self.live = self.live, lease
        self._used[lease.generation.number] = lease
        lease.__enter__()
        before.__exit__()

    async def close(self) -> None:
        """Tear all plugins down, whoever uses them."""
        if self._lifecycle:
            await self._lifecycle.close()

    def _remove(self, lease: Lease) -> None:
        if self._used.get(lease.generation.number) is lease:
            del self._used[lease.generation.number]
            self._on_unused()

    def generations(self) -> list[Generation]:
        """Those in use."""
        return [lease.generation for lease in self._used.values()]
