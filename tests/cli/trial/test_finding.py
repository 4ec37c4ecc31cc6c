"""What a bar shows of what is under way."""

from __future__ import annotations

import pytest

from gateway.cli.trial.finding import Steps


def test_what_waits_longest_is_told_first():
    seen: list[tuple[int, int, tuple[str, ...]]] = []
    steps = Steps(lambda now: seen.append((now.done, now.begun, tuple(now.waiting))))
    with steps.step("a"), steps.step("b"):
        pass
    assert seen == [(0, 1, ("a",)), (0, 2, ("a", "b")), (1, 2, ("a",)), (2, 2, ())]


def test_what_fails_is_done():
    steps = Steps()
    with pytest.raises(TimeoutError), steps.step("a"):
        raise TimeoutError
    assert (steps.done, steps.waiting) == (1, ())
