"""Circuit breakers: after repeated failures calls of a model are suspended, and a probe ends the cooldown."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from framework.engine.context.run_context import JITTER, MAX_COOLDOWN, CircuitBreakers, Permit
from tests.support.cases import cases

AFTER, COOLDOWN = 3, 5.0


@dataclass
class World:
    """Circuit breakers with a fake clock and a fixed random share."""

    now: float = 100.0
    chance: float = 0.0
    breakers: CircuitBreakers = field(init=False)

    def __post_init__(self) -> None:
        self.breakers = CircuitBreakers(lambda: self.now, lambda: self.chance)

    def ask(self, model: str = "m") -> Permit:
        return self.breakers.acquire(model)

    def fail(self, permit: Permit, model: str = "m") -> None:
        self.breakers.record_failure(model, permit, "down", after=AFTER, cooldown=COOLDOWN)

    def fail_times(self, times: int) -> None:
        for _ in range(times):
            self.fail(self.ask())


def test_failures_in_a_row_begin_a_cooldown_and_a_success_between_them_does_not_count() -> None:
    world = World()
    world.fail_times(AFTER - 1)
    world.breakers.record_success("m")
    world.fail_times(AFTER - 1)
    assert world.ask().wait == 0
    assert not world.breakers.is_open("m")
    world.fail_times(1)
    assert world.ask().wait == COOLDOWN
    assert world.breakers.is_open("m")
    assert world.breakers.last_error("m") == "3 failures in a row, most recently: down"


def test_one_probe_is_admitted_after_a_cooldown_and_other_calls_wait() -> None:
    world = World()
    world.fail_times(AFTER)
    world.now += COOLDOWN
    assert world.ask().wait == 0
    assert [world.ask().wait for _ in range(3)] == [COOLDOWN] * 3
    world.breakers.record_success("m")
    assert [world.ask().wait for _ in range(3)] == [0] * 3


def test_a_failed_probe_doubles_the_cooldown_up_to_the_maximum() -> None:
    world = World()
    world.fail_times(AFTER)
    waits = []
    for _ in range(6):
        waits.append(world.ask().wait)
        world.now += waits[-1]
        world.fail(world.ask())
    assert waits == [5, 10, 20, 40, MAX_COOLDOWN, MAX_COOLDOWN]


def test_a_probe_without_an_outcome_is_followed_by_another() -> None:
    world = World()
    world.fail_times(AFTER)
    world.now += COOLDOWN
    world.ask()
    world.now += COOLDOWN
    assert world.ask().wait == 0


def test_calls_that_began_before_the_cooldown_do_not_prolong_it() -> None:
    world = World()
    begun = [world.ask() for _ in range(10)]
    for permit in begun:
        world.fail(permit)
    assert world.ask().wait == COOLDOWN


def test_each_model_has_its_own_circuit_breaker() -> None:
    world = World()
    world.fail_times(AFTER)
    assert world.ask("other").wait == 0


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("pass"), st.floats(0, 30)),
        st.tuples(st.just("ask"), st.just(0.0)),
        st.tuples(st.just("fail"), st.floats(0, 1)),
        st.tuples(st.just("succeed"), st.just(0.0)),
    ),
    max_size=80,
)


@given(steps=STEPS, chance=st.floats(0, 1))
@cases(150)
def test_every_wait_is_bounded_and_a_cooldown_admits_one_call(steps: list[tuple[str, float]], chance: float) -> None:
    world = World(chance=chance)
    open_calls: list[Permit] = []
    quiet_until = 0.0
    for step, value in steps:
        match step:
            case "pass":
                world.now += value
            case "ask":
                permit = world.ask()
                assert 0 <= permit.wait <= MAX_COOLDOWN
                assert permit.wait == 0 or world.breakers.is_open("m")
                if permit.wait == 0:
                    assert world.now >= quiet_until, "no call is admitted during a cooldown"
                    open_calls.append(permit)
                    if world.ask().wait:  # that was a probe: no second one
                        quiet_until = world.now + world.ask().wait
            case "fail" if open_calls:
                before = world.ask().wait if world.breakers.is_open("m") else 0.0
                world.fail(open_calls.pop(int(value * (len(open_calls) - 1))))
                if world.breakers.is_open("m"):
                    wait = world.ask().wait
                    assert wait >= min(before, COOLDOWN * (1 - JITTER)), "a failure never makes it shorter"
                    quiet_until = world.now + wait
            case "succeed" if open_calls:
                open_calls.pop()
                world.breakers.record_success("m")
                quiet_until = 0.0
                assert world.ask().wait == 0


def test_the_outcome_of_a_superseded_probe_is_ignored() -> None:
    world = World()
    world.fail_times(AFTER)
    world.now += COOLDOWN
    lost = world.ask()
    assert lost.wait == 0
    world.now += COOLDOWN
    assert world.ask().wait == 0, "the first probe never came back"
    world.fail(lost)
    world.now += COOLDOWN
    assert world.ask().wait == 0, "its failure, recorded late, has extended no cooldown"
