"""Stories that the model once told of nobody but itself."""

from __future__ import annotations

from model.machine import World

from gateway.core.client.terms import SlowClientPolicy


def play_steps(world: World, *steps: tuple[str, tuple[int, ...]]) -> None:
    for what, arguments in steps:
        getattr(world, what)(*arguments)
    world.quiesce()


def test_an_end_that_was_heard_in_time_counts_however_late_its_turn_is():
    """The oracle was told of it as of the turn: a second late, it expected what came before."""
    connect, read = ("connect", (3, 91)), ("flow", (3,))
    heard = ("send", (1,)), ("produce", (0, 0)), ("serve", (1, 0)), ("deliver", (1, 0))
    play_steps(World(1), connect, *heard, ("produce", (0, 0)), ("wait", (2,)), ("pump", (1,)), read)


def test_who_comes_back_before_an_end_was_found_does_not_begin_at_one_asked_for_now():
    """The model's gateway took it for an end as of the first connect, as ours does not."""
    pump = ("pump", (1,))
    begun = ("connect", (3, 237)), ("flow", (3,)), pump, pump, ("cut", (3, 227))
    back = ("connect", (3, 162)), ("send", (0,)), ("produce", (1, 44)), ("pump", (0,))
    play_steps(World(2), *begun, *back)


def test_a_gap_may_begin_in_a_log_that_was_truncated_since():
    """The oracle held it against the log of the new leader, and a newer record to be lost."""
    world = World(3, slow=SlowClientPolicy.SKIP)
    fallen = ("connect", (1, 135)), ("pump_more", (1,)), ("produce", (0, 0)), ("connect", (3, 157))
    cut_off = ("produce", (1, 185)), ("produce", (1, 71)), ("pump", (1,)), ("take", (3, 2))
    election = ("pump", (1,)), ("elect_unclean", (1, 3))
    play_steps(world, *fallen, ("add_partition", ()), ("pump", (1,)), *cut_off, *election)
