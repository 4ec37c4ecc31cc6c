"""Two checkouts are measured in turns, and figures are told as new / old."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import paired
from bench.feed import Wire
from bench.kafka import Kafka
from bench.peers.gateway_peer import GatewayPeer
from bench.results import PER_CPU, Cell, Run
from bench.works import pace


def cell(rate: float, latency: float) -> Cell:
    found = Cell()
    found.add_row("200 clients", PER_CPU, "1/s", rate)
    found.add_row("200 clients", "latency p50", "ms", latency)
    return found


def test_a_figure_is_the_median_of_the_ratios_of_its_turns():
    """Each other turn the new one is first."""
    run = Run(None, {"date": "today"}, {})
    for old, new in (((100, 2), (110, 2)), ((200, 2), (196, 2)), ((100, 2), (99, 3))):
        turn = [("gateway-sse old", cell(*old)), ("gateway-sse new", cell(*new))]
        for peer, each in reversed(turn) if old[0] == 200 else turn:
            run.add_cell("lat", peer, each)
    pairs = paired.pair_up(run)
    rate = pairs["lat", "gateway-sse", "200 clients", PER_CPU, "1/s"]
    assert (rate.ratio, rate.low, rate.high, rate.n) == (0.99, 0.98, 1.1, 3)
    assert pairs["lat", "gateway-sse", "200 clients", "latency p50", "ms"].ratio == 1
    assert "| 0.990 | 0.980 | 1.100 | 3 | yes |" in paired.render_markdown(run)


@pytest.mark.parametrize(
    ("what", "ratio", "kept"),
    [(PER_CPU, 0.96, False), (PER_CPU, 1.5, True), ("latency p50", 1.04, False),
     ("latency p50", 0.5, True), ("latency p50", 1.02, True)],
)  # fmt: skip
def test_more_of_a_rate_is_better_and_less_of_anything_else(what: str, ratio: float, kept: bool):
    assert paired.is_within_loss(what, ratio) is kept


@pytest.mark.night
async def test_the_gateway_of_a_checkout_is_the_one_that_runs(mock: Kafka, tmp_path: Path):
    """The folder that the bench was started in has a gateway, too, and must not come first."""
    package = tmp_path / "gateway"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "__main__.py").write_text("raise SystemExit('the gateway of the checkout')\n")
    size = pace.Size(clients=1, seconds=0.1, repeats=1)
    with pytest.raises(AssertionError, match="of the checkout"):
        await pace.run(mock, GatewayPeer(Wire.SSE, checkout=tmp_path), size)
