from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.error_code import ErrorCode
from gateway.core.log.recovery import (
    CAUSE_BY_ERROR_CODE,
    RECOVERY_RULES,
    Backoff,
    Cause,
    RecoveryAction,
    cause_from_code,
)

CAUSE = st.sampled_from(list(Cause))


def test_every_cause_has_a_rule_and_every_code_a_cause():
    assert set(RECOVERY_RULES) == set(Cause)
    assert set(CAUSE_BY_ERROR_CODE.values()) <= set(Cause)
    assert cause_from_code(12345) is Cause.UNEXPECTED
    assert cause_from_code(ErrorCode.OFFSET_OUT_OF_RANGE) is Cause.OUT_OF_RANGE


@given(CAUSE, st.floats(0, 1, exclude_max=True), st.floats(0.1, 10), st.integers(1, 2000))
def test_no_delay_is_longer_than_its_bound_and_only_the_first_may_be_none(
    cause, drawn, ceiling, attempts
):
    backoff = Backoff(ceiling, lambda: drawn)
    delays = [backoff.next_delay(cause) for _ in range(attempts)]
    rule = RECOVERY_RULES[cause]
    high = (
        max(ceiling, backoff.min_delay)
        if rule.action is RecoveryAction.RECONNECT
        else rule.max_delay
    )
    assert max(delays) <= high
    assert min(delays[1:], default=1.0) > 0.0
    if rule.action is RecoveryAction.REPORT:
        assert min(delays) >= rule.min_delay


def test_delays_grow_until_something_succeeds():
    backoff = Backoff(1.0, lambda: 0.999)
    first = [backoff.next_delay(Cause.CONNECTION) for _ in range(8)]
    assert first == sorted(first)
    assert first[-1] == pytest.approx(1.0, abs=0.01)
    backoff.reset()
    assert backoff.next_delay(Cause.CONNECTION) == first[0]


def test_another_cause_starts_over():
    backoff = Backoff(1.0, lambda: 0.999)
    for _ in range(8):
        backoff.next_delay(Cause.CONNECTION)
    assert backoff.next_delay(Cause.NOT_LEADER) == 0.0
