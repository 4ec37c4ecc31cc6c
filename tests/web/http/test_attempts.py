from __future__ import annotations

import pytest

from gateway.config import Limits as Settings
from gateway.web.http.limits import (
    FREE_ATTEMPTS,
    MAX_RATE_LIMITED_IN_A_ROW,
    MAX_WRONG_TOKENS,
    Attempts,
    Limits,
    RateLimited,
)
from gateway.web.workers.bus import Bus


def build_attempts(**limits: object) -> Attempts:
    return Attempts(Limits(Settings.model_validate(limits), Bus()), "192.0.2.1")


async def test_a_socket_has_some_free_and_each_more_is_a_request_of_its_address():
    made = build_attempts(rate="1/h", burst=3)
    for _ in range(FREE_ATTEMPTS + 3):
        await made.count_attempt()
    for _ in range(MAX_RATE_LIMITED_IN_A_ROW):
        assert not made.is_flooding
        with pytest.raises(RateLimited) as refused:
            await made.count_attempt()
        assert refused.value.status == 429 and 3500 < (refused.value.retry_after or 0) <= 3600
    assert made.is_flooding


async def test_one_who_told_a_wrong_token_has_none_free():
    made = build_attempts(rate="1/h", burst=3)
    made.note_token()
    await made.count_attempt()
    made.note_refused(401)
    for _ in range(3):
        await made.count_attempt()
    with pytest.raises(RateLimited):
        await made.count_attempt()


async def test_without_a_rate_nothing_is_refused():
    made = build_attempts()
    for _ in range(3 * FREE_ATTEMPTS):
        await made.count_attempt()


def test_one_wrong_token_after_the_other_is_a_guess():
    made = build_attempts()
    for _ in range(MAX_WRONG_TOKENS):
        assert not made.has_guessed
        made.note_token()
        made.note_refused(401)
    assert made.has_guessed


def test_a_token_that_is_taken_ends_the_row():
    made = build_attempts()
    for _ in range(3):
        for _ in range(MAX_WRONG_TOKENS - 1):
            made.note_token()
            made.note_refused(401)
        made.note_admitted()
    assert not made.has_guessed


@pytest.mark.parametrize("status", [401, 403])
def test_what_came_with_the_handshake_or_lacks_a_role_is_no_guess(status: int):
    """A page may ask for all its streams without having logged in, or without the role."""
    made = build_attempts()
    if status == 403:
        made.note_token()
    for _ in range(2 * MAX_WRONG_TOKENS):
        made.note_refused(status)
    assert not made.has_guessed
