"""What input may cost a parser, in time and memory.

Time is told in *turns*: the CPU time of one turn of an empty Python loop on the same machine in
the same run, 15 to 40 ns. So a budget holds on a slow machine, and beside others who use it: CPU
time of this thread is counted, never the clock on the wall; what is compared is measured in turn,
since a shared core is slower from one moment to the next; and the least of several tries counts,
since whatever disturbs only adds.

    growth(parse, b"x" * 1000, b"x" * 4000)      4 where it is linear, 16 where it is quadratic
    BUDGET.check(parse, text, len(text))         AssertionError that says what it cost
"""

from __future__ import annotations

import gc
import math
import time
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import TypeVar

T = TypeVar("T")

TRIES = 5
MAX_TRIES = 25
MIN_WORK_S = 0.0005
"""Seconds that a measured piece of work takes at least: it is repeated until it does."""
MAX_LINEAR_GROWTH = 11.0
"""`growth` from n to 4n that is surely more than linear, and surely less than quadratic."""


def measure_cpu_time(work: Callable[[], object], tries: int = TRIES) -> float:
    """Return the seconds of CPU that a call takes, the least of some tries."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        best, repeats = _measure_seconds(work, 1), 1
        while best < MIN_WORK_S and repeats < 1 << 14:
            repeats *= 4
            best = _measure_seconds(work, repeats)
        return min([best, *(_measure_seconds(work, repeats) for _ in range(tries - 1))]) / repeats
    finally:
        if enabled:
            gc.enable()


def measure_growth(
    work: Callable[[T], object], small: T, large: T, target: float = MAX_LINEAR_GROWTH
) -> float:
    """Return how many times the CPU time of `small` it takes for `large`.

    enough: Others on the machine only add to it, so that it is measured again unless it is below.
    """
    least = math.inf
    for _ in range(MAX_TRIES):
        ratio = measure_cpu_time(lambda: work(large), 1) / measure_cpu_time(lambda: work(small), 3)
        least = min(least, ratio)
        if least < target:
            break
    return least


def measure_turns(work: Callable[[], object], target: float = 0.0) -> float:
    """Return the CPU time of a call in turns of an empty loop. enough: as of `growth`."""
    least = math.inf
    for tried in range(MAX_TRIES):
        least = min(least, measure_cpu_time(work, 1) / _measure_turn_time())
        if least < target or (not target and tried + 1 == TRIES):
            break
    return least


def measure_peak_memory(work: Callable[[], object]) -> int:
    """Return the bytes that a call holds at its peak beyond what was held before it."""
    return _measure_memory(work)[1]


def measure_held_memory(work: Callable[[], object]) -> int:
    """Return the bytes that are held after a call, its result aside, beyond those before it."""
    return _measure_memory(work)[0]


def _measure_memory(work: Callable[[], object]) -> tuple[int, int]:
    traced = tracemalloc.is_tracing()
    if not traced:
        tracemalloc.start()
    try:
        tracemalloc.reset_peak()
        before, _ = tracemalloc.get_traced_memory()
        result = work()
        _, peak = tracemalloc.get_traced_memory()
        del result
        held, _ = tracemalloc.get_traced_memory()
        return held - before, peak - before
    finally:
        if not traced:
            tracemalloc.stop()


@dataclass(frozen=True, slots=True)
class Budget:
    """What a call may cost, by the length of its input.

    Attributes:
        turns: For any input, in turns of an empty loop; 1,000 are some 25 us.
        turns_per_byte: On top, for each byte (or character) of input.
        memory: For any input, in bytes.
        memory_per_byte: On top, for each byte of input.
    """

    base_turns: float = 40_000
    turns_per_byte: float = 40
    base_memory: int = 256 * 1024
    memory_per_byte: float = 64

    def check_cost(self, work: Callable[[], object], length: int) -> None:
        """Run `work` on input of `length` bytes, and raise AssertionError if it costs more.

        Whatever `work` raises is the caller's to catch. It runs two times at least.
        """
        allowed = self.base_turns + self.turns_per_byte * length
        taken = _measure_seconds(work, 1) / cached_turn_time()
        if taken > allowed:  # others may have disturbed it
            taken = min(taken, measure_turns(work, allowed))
        assert taken <= allowed, f"{taken:.0f} turns for {length} bytes, {allowed:.0f} are allowed"
        room = self.base_memory + self.memory_per_byte * length
        held = measure_peak_memory(work)
        assert held <= room, f"{held} bytes of memory for {length}, {room:.0f} are allowed"


def _measure_seconds(work: Callable[[], object], repeats: int) -> float:
    start = time.thread_time()
    for _ in range(repeats):
        work()
    return time.thread_time() - start


def _measure_turn_time() -> float:
    """Return the seconds of CPU of one turn of an empty loop on this machine at this moment."""
    return min(_measure_loop(20_000) for _ in range(3)) / 20_000


cached_turn_time = cache(_measure_turn_time)
"""As `_turn_time`, once: for a first guess."""


def _measure_loop(count: int) -> float:
    start = time.thread_time()
    for _ in range(count):
        pass
    return time.thread_time() - start
