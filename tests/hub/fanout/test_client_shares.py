"""One client with many connections leaves room for others."""

from __future__ import annotations

from typing import cast

import pytest

from gateway.core.channel.channel import Channel
from gateway.core.channel.filters import Condition, Filter, Filters
from gateway.errors import Busy
from gateway.hub.fanout.client_shares import MAX_CLIENT_CONDITIONS, ClientShares
from gateway.hub.reads.view import View

MIB = 1 << 20


def create_channel() -> Channel:
    return cast("Channel", object())  # it is known by its identity only


def build_view(*filters: Filter) -> View:
    return View(("orders",), Filters(filters), "value", "error")


def build_wide_view(conditions: int) -> View:
    there = Condition(exists=True)
    return build_view(*(Filter(fields=((f"/{n}", there),)) for n in range(conditions)))


def test_the_conditions_of_a_client_are_bounded_over_all_of_its_connections():
    """They were bounded by socket, and 100 sockets made each record cost 40 ms."""
    shares, view = ClientShares(), build_wide_view(64)
    shares.max_bytes = 1024 * MIB
    channels = [create_channel() for _ in range(MAX_CLIENT_CONDITIONS // 64)]
    for channel in channels:
        shares.add("10.0.0.1", channel, view)
    with pytest.raises(Busy, match="conditions"):
        shares.add("10.0.0.1", create_channel(), view)
    shares.add("10.0.0.2", create_channel(), view)
    for channel in (channels[0], create_channel()):
        shares.remove("10.0.0.1", channel)
    shares.add("10.0.0.1", create_channel(), view)


def test_streams_of_one_address_that_an_index_finds_are_not_bounded():
    shares = ClientShares()
    shares.max_bytes = MIB
    fields = (("/a", "1"), ("/b", "2"), ("/c", "3"))
    for _ in range(50 * 100):
        shares.add("10.0.0.1", create_channel(), build_view(Filter(fields=fields)))


@pytest.mark.parametrize("within", [None, Filters((Filter(key=b"hot"),))])
def test_the_conditions_beside_the_value_of_a_small_filter_are_bounded(within: Filters | None):
    """All filters may require the same value: 64,000 conditions made each record cost 34 ms."""
    shares, rest = ClientShares(), tuple((f"/{n}", Condition(prefix="a")) for n in range(10))
    shares.max_bytes = 1024 * MIB
    own = Filter(key=None if within else b"hot", fields=rest)
    view = View(("orders",), Filters((own,), within), "value", "error")
    for _ in range(MAX_CLIENT_CONDITIONS // len(rest)):
        shares.add("10.0.0.1", create_channel(), view)
    with pytest.raises(Busy, match="conditions"):
        shares.add("10.0.0.1", create_channel(), view)
    shares.add("10.0.0.1", create_channel(), build_view(Filter(key=b"hot")))


def test_a_channel_counts_for_each_client_once_while_it_follows_it():
    """It counted for the client that had created it, also after that one had left."""
    shares, shared, view = ClientShares(), create_channel(), build_wide_view(64)
    shares.max_bytes = view.size
    for client in ("10.0.0.1", "10.0.0.1", "10.0.0.2"):
        shares.add(client, shared, view)
    shares.remove("10.0.0.1", shared)
    for client in ("10.0.0.1", "10.0.0.2"):
        with pytest.raises(Busy, match="memory"):
            shares.add(client, create_channel(), view)
    shares.remove("10.0.0.1", shared)
    shares.add("10.0.0.1", create_channel(), view)


def test_nobody_is_bounded_where_one_address_may_be_all_clients():
    shares, view = ClientShares(), build_wide_view(64)
    for _ in range(2 * MAX_CLIENT_CONDITIONS // 64):
        shares.add("10.0.0.1", create_channel(), view)
