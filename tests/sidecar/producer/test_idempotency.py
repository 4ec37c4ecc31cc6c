"""Where a ledger begins to read, alone; what it does with that is tested over the socket."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from gateway.config.sections.sidecar import Producer
from gateway.core.log.record import TopicPartition
from gateway.kafka.client.offsets import LATEST, Offset
from gateway.sidecar.producer.idempotency import Ledger


class Log:
    """A cluster with one topic, to which another replica writes whenever it was asked."""

    outages = None

    def __init__(self) -> None:
        self.ends = {0: 3, 1: 0}
        self.first_new = dict(self.ends)

    def topic(self, name: str) -> Any:
        return SimpleNamespace(name=name, error=0, topic_id=None)

    async def list_offsets(self, specs: Mapping[TopicPartition, int]) -> dict[TopicPartition, Any]:
        told = {
            tp: Offset(self.ends[tp.partition] if spec == LATEST else -1, -1, 0)
            for tp, spec in specs.items()
        }
        for number in self.ends:
            self.ends[number] += 1
        return told


async def test_a_claim_that_is_written_while_it_looks_where_to_begin_is_read():
    """Two replicas that began at once both had the first claim of one key, and both wrote."""
    log = Log()

    async def topic(name: str) -> Any:
        return SimpleNamespace(name=name, partitions={0: None, 1: None}, topic_id=None)

    context: Any = SimpleNamespace(cluster=log, topic=topic)
    ledger = Ledger(context, Producer(), transactors=None)  # type: ignore[arg-type]
    places = await ledger._begin()
    assert {tp.partition: ledger._next[tp] for tp in places} == log.first_new
