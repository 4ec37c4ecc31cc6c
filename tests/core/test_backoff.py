from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.backoff import BackoffPolicy, ContentionBackoff


def test_the_longest_delay_doubles_with_each_failure_up_to_the_limit():
    policy = BackoffPolicy(0.5, 3.0, jitter=0.0)
    assert [policy.compute_delay(failures, lambda: 0.9) for failures in range(1, 6)] == [
        0.5, 1.0, 2.0, 3.0, 3.0,
    ]  # fmt: skip


@pytest.mark.parametrize(("jitter", "shortest"), [(0.0, 4.0), (0.5, 2.0), (1.0, 0.0)])
def test_jitter_is_the_share_of_a_delay_that_is_random(jitter: float, shortest: float):
    policy = BackoffPolicy(1.0, 60.0, jitter)
    assert policy.compute_delay(3, lambda: 0.0) == shortest
    assert policy.compute_delay(3, lambda: 1.0) == 4.0


@given(st.floats(0.0, 1.0), st.floats(0, 1, exclude_max=True), st.integers(1, 5000))
def test_no_number_of_failures_exceeds_the_limit_or_shortens_the_delay(jitter, drawn, failures):
    """2.0 ** 1024 raises OverflowError: a back end that is away for a day must not reach it."""
    policy = BackoffPolicy(0.1, 5.0, jitter)
    delays = [policy.compute_delay(failures + more, lambda: drawn) for more in range(3)]
    assert all(0.0 <= delay <= 5.0 for delay in delays)
    assert all(earlier <= later for earlier, later in pairwise(delays))


def test_what_is_lost_again_and_again_is_left_to_others_for_longer():
    backoff: ContentionBackoff[str] = ContentionBackoff(BackoffPolicy(2.0, 8.0), lambda: 1.0)
    pauses = []
    for _ in range(4):
        backoff.note_loss("k", 10.0)
        pauses.append(backoff.get_remaining("k", 11.0))
    assert pauses == [1.0, 3.0, 7.0, 7.0]
    assert backoff.get_remaining("other", 11.0) == backoff.get_remaining("k", 30.0) == 0.0


def test_after_a_success_or_long_peace_a_loss_is_the_first():
    backoff: ContentionBackoff[str] = ContentionBackoff(BackoffPolicy(2.0, 8.0), lambda: 1.0)
    for key in ("done", "quiet", "busy"):
        backoff.note_loss(key, 0.0)
    backoff.note_success("done")
    backoff.note_loss("done", 9.0)
    backoff.note_loss("busy", 9.0)
    backoff.note_loss("quiet", 11.0)
    assert backoff.get_remaining("done", 9.0) == 2.0
    assert backoff.get_remaining("busy", 9.0) == 4.0
    assert backoff.get_remaining("quiet", 11.0) == 2.0
