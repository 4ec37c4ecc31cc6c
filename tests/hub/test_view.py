from __future__ import annotations

import subprocess
import sys

import pytest

from gateway.core.filters import Filter, Filters
from gateway.hub.view import View

ADA = Filters((Filter(key=b"ada", headers=(("region", b"eu"),), fields=(("/status", "paid"),)),))
VIEW = View(("orders", "refunds"), ADA, "value", "error")


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
    ],
    ids=["topics", "no filter", "filter", "format", "binary"],
)
def test_whatever_changes_what_is_seen_is_another_view(other: View):
    assert other.digest != VIEW.digest


def test_another_process_gives_a_view_the_same_digest():
    """Or every client that reconnects to another replica would be told that its view changed."""
    code = (
        "from gateway.core.filters import Filter, Filters\n"
        "from gateway.hub.view import View\n"
        f"print(View({VIEW.topics!r}, {ADA!r}, 'value', 'error').digest.decode())"
    )
    said = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert said.stdout.strip().encode() == VIEW.digest
