"""What a bar shows of what is under way."""

from __future__ import annotations

import pytest

from gateway.cli.cluster_check.finding import CheckProgress


def test_what_waits_longest_is_told_first():
    seen: list[tuple[int, int, tuple[str, ...]]] = []
    steps = CheckProgress(lambda now: seen.append((now.done, now.started, tuple(now.pending))))
    with steps.track("a"), steps.track("b"):
        pass
    assert seen == [(0, 1, ("a",)), (0, 2, ("a", "b")), (1, 2, ("a",)), (2, 2, ())]


def test_what_fails_is_done():
    steps = CheckProgress()
    with pytest.raises(TimeoutError), steps.track("a"):
        raise TimeoutError
    assert (steps.done, steps.pending) == (1, ())
