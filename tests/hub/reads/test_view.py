from __future__ import annotations

import os
import subprocess
import sys
import tracemalloc
from decimal import Decimal

import pytest

from gateway.core.channel.filter_index import FilterIndex
from gateway.core.channel.filters import Condition, Filter, Filters
from gateway.formats import create_format
from gateway.hub.reads.view import View

ADA = Filters((Filter(key=b"ada", headers=(("region", b"eu"),), fields=(("/status", "paid"),)),))
VIEW = View(("orders", "refunds"), ADA, "value", "error")
LISTED = Filter(
    headers=(("region", Condition(one_of=("us", "eu", "asia"))),),
    fields=(("/n", Condition(bounds=(("lt", Decimal("2.50")), ("gt", 1)))),),
)
CHOSEN = View(("orders",), ADA.narrow(Filters((LISTED,))), "value", "error", ("/a", "/b"))


def build_deep_filter(pointers: list[str]) -> View:
    alternatives = tuple(Filter(fields=((pointer, "1"),)) for pointer in pointers)
    return View(("orders",), Filters(alternatives), "value", "error")


def build_deep_fields(pointers: list[str]) -> View:
    return View(("orders",), Filters(), "value", "error", tuple(pointers))


def test_equal_views_are_one_channel():
    again = View(("orders", "refunds"), Filters(tuple(ADA.filters)), "value", "error")
    assert again == VIEW
    assert again.digest == VIEW.digest


def test_the_order_of_topics_is_not_seen():
    assert View(("refunds", "orders"), ADA, "value", "error").digest == VIEW.digest


@pytest.mark.parametrize(
    "other",
    [
        View(("orders",), ADA, "value", "error"),
        View(("orders", "refunds"), Filters(), "value", "error"),
        View(("orders", "refunds"), Filters((Filter(key=b"bob"),)), "value", "error"),
        View(("orders", "refunds"), ADA, "envelope", "error"),
        View(("orders", "refunds"), ADA, "value", "base64"),
        View(("orders", "refunds"), ADA, "value", "error", ("/a",)),
        View(("orders", "refunds"), ADA.narrow(ADA), "value", "error"),
        View(("orders", "refunds"), ADA.narrow(Filters((LISTED,))), "value", "error"),
    ],
    ids=["topics", "no filter", "filter", "format", "binary", "fields", "narrowed", "narrowest"],
)
def test_whatever_changes_what_is_seen_is_another_view(other: View):
    assert other.digest != VIEW.digest


@pytest.mark.needs("process")
def test_another_process_gives_a_view_the_same_digest():
    """Or every client that reconnects to another replica would be told that its view changed."""
    code = (
        "from decimal import Decimal\n"
        "from gateway.core.channel.filters import Condition\n"
        "from gateway.core.channel.filters import Filter, Filters\n"
        "from gateway.hub.reads.view import View\n"
        f"for view in ({VIEW!r}, {CHOSEN!r}): print(view.digest.decode())"
    )
    said = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONHASHSEED": "1"},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert said.stdout.encode().split() == [VIEW.digest, CHOSEN.digest]


def test_the_size_of_a_view_is_that_of_its_parsed_values():
    """Three bytes a character were counted of filters that took eleven times as many."""
    tracemalloc.start()
    try:
        values = tuple(map(chr, range(0x4E00, 0x4E00 + 100)))
        filters = Filters(
            tuple(
                Filter(fields=((f"/{n}", Condition(one_of=(*values[:-1], str(n)))),))
                for n in range(35)
            )
        )
        view = View(("orders",), filters, "value", "error")
        index: FilterIndex[int] = FilterIndex()
        index.add(0, filters)
        used_bytes = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert 0.5 < view.size / used_bytes < 2


@pytest.mark.parametrize("steps", [8, 32])
@pytest.mark.parametrize("build_view", [build_deep_filter, build_deep_fields])
def test_the_size_of_a_view_grows_with_the_steps_of_its_pointers(build_view, steps: int):
    """A pointer of 32 steps was counted with 700 bytes, and took 17,000."""
    index: FilterIndex[View] = FilterIndex()
    tracemalloc.start()
    try:
        view = build_view(
            ["".join(f"/step-{n}-{step}" for step in range(steps)) for n in range(40)]
        )
        index.add(view, view.filters)
        kept = create_format("value", binary="error", fields=view.fields), index
        used_bytes = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert kept and 0.5 < view.size / used_bytes < 2
