"""When to connect again."""

from __future__ import annotations

from gateway.cli.tail.follower import MAX_DELAY_S, ReconnectBackoff


def test_the_first_wait_is_what_the_server_asked_for():
    assert ReconnectBackoff().next_delay(retry=2.5) == 2.5
    assert ReconnectBackoff().next_delay(retry=None) == 1.0


def test_waits_grow_to_a_bound_and_are_drawn_at_random():
    low, high = ReconnectBackoff(random=lambda: 0.0), ReconnectBackoff(random=lambda: 1.0)
    lows = [low.next_delay(1.0) for _ in range(100)]
    highs = [high.next_delay(1.0) for _ in range(100)]
    assert lows[:4] == [1.0, 1.0, 2.0, 4.0] and lows[-1] == MAX_DELAY_S / 2
    assert highs[:4] == [1.0, 2.0, 4.0, 8.0] and highs[-1] == MAX_DELAY_S


def test_a_server_may_ask_for_no_wait_once_not_for_a_storm():
    reconnects = ReconnectBackoff(random=lambda: 0.0)
    assert reconnects.next_delay(0.0) == 0.0
    assert reconnects.next_delay(0.0) >= 0.1


def test_retry_after_is_never_undercut():
    assert ReconnectBackoff().next_delay(1.0, retry_after=7.0) == 7.0
    assert ReconnectBackoff().next_delay(9.0, retry_after=7.0) == 9.0


def test_an_open_stream_begins_it_anew():
    reconnects = ReconnectBackoff(random=lambda: 1.0)
    for _ in range(5):
        reconnects.next_delay(1.0)
    reconnects.reset()
    assert reconnects.next_delay(1.0) == 1.0
