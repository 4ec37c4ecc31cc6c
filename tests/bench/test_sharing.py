"""What workers would gain by sharing is measured with records that all arrive."""

from __future__ import annotations

from bench.kafka import MockKafka
from bench.sharing import SharingResult, Size, measure
from gateway.kafka.embedded import EmbeddedKafka


async def test_each_rate_is_measured():
    size = Size(keys=4, rates=(40,), seconds=0.2, repeats=1)
    with EmbeddedKafka() as embedded:
        results = await measure(MockKafka(embedded), size)
    assert [result.rate for result in results] == [40]
    result = results[0]
    assert min(result.one_worker, result.half, result.two_workers, result.hand_over) > 0


def test_the_gain_is_what_two_workers_take_beside_one_that_hands_over():
    result = SharingResult(rate=4000, one_worker=40, half=30, two_workers=60, hand_over=10)
    assert result.best_gain == 60 / (40 + 10)
