"""Leases on generations: plugins stay set up while a generation is live or a run uses it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from framework.config.generations.generation import Generation
from framework.tools.plugins.loader import Plugin, PluginLease, PluginLifecycle
from framework.types.errors import ConfigError
from framework.types.problem import Problem


class Lease:
    """A generation whose plugins are set up. Enter it with `with lease as generation:`, any number of times."""

    __slots__ = ("_on_release", "_use", "_users", "generation")

    def __init__(self, generation: Generation, use: PluginLease, on_release: Callable[[Lease], None]) -> None:
        self.generation = generation
        self._use, self._on_release, self._users = use, on_release, 0

    @property
    def failed(self) -> Mapping[Plugin, tuple[Problem, ...]]:
        """The plugins whose setup failed, with the reasons."""
        return self._use.failed

    def __enter__(self) -> Generation:
        self._users += 1
        return self.generation

    def __exit__(self, *_: object) -> None:
        self._users -= 1
        if not self._users:
            self.release()

    def release(self) -> None:
        """Release the plugins. Called when the last user exits, or for a lease that was never entered."""
        self._on_release(self)
        self._use.release()


class Leases:
    """The generations in use; one of them is live."""

    def __init__(
        self, lifecycle: PluginLifecycle | None, first: Generation, on_unused: Callable[[], None] = lambda: None
    ) -> None:
        """Start with `first` as the live generation. `on_unused` is called when a generation is no longer in use."""
        self._lifecycle, self._on_unused = lifecycle, on_unused
        self._used: dict[int, Lease] = {}
        self.live = Lease(first, PluginLease(), self._remove)
        self.live.__enter__()

    async def acquire(self, generation: Generation) -> Lease:
        """Set up the plugins of a generation, and return its lease. `Lease.failed` contains the failures."""
        use = await self._lifecycle.acquire(generation.plugins) if self._lifecycle else PluginLease()
        return Lease(generation, use, self._remove)

    async def set_up(self, plugins: Iterable[Plugin]) -> PluginLease:
        """Set up plugins that no generation has yet, and return their lease."""
        return await self._lifecycle.acquire(plugins) if self._lifecycle else PluginLease()

    async def reacquire(self, generation: Generation) -> Lease:
        """Return the lease of an earlier generation. Plugins that were torn down since are set up again.

        Raises:
            ConfigError: the setup of a plugin failed.
        """
        if existing := self._used.get(generation.number):
            return existing
        lease = await self.acquire(generation)
        if errors := [problem for problems in lease.failed.values() for problem in problems]:
            lease.release()
            raise ConfigError(f"cannot set up the plugins of generation {generation.number} again", errors)
        if existing := self._used.get(generation.number):  # another task was faster
            lease.release()
            return existing
        self._used[generation.number] = lease
        return lease

    def publish(self, lease: Lease) -> None:
        """Make the generation of a lease the live one."""
        before, self.live = self.live, lease
        self._used[lease.generation.number] = lease
        lease.__enter__()
        before.__exit__()

    async def close(self) -> None:
        """Tear down all plugins, even those in use."""
        if self._lifecycle:
            await self._lifecycle.close()

    def _remove(self, lease: Lease) -> None:
        if self._used.get(lease.generation.number) is lease:
            del self._used[lease.generation.number]
            self._on_unused()

    def generations(self) -> list[Generation]:
        """Return the generations in use."""
        return [lease.generation for lease in self._used.values()]
