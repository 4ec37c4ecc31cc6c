"""A Kafka for works that needs no Java."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import pytest

from gateway.kafka.embedded import EmbeddedKafka


class MockKafka:
    """librdkafka's mock, as works ask for a Kafka."""

    def __init__(self, embedded: EmbeddedKafka) -> None:
        self.bootstrap = embedded.bootstrap
        self._embedded = embedded
        self._numbers = count()

    @property
    def bootstrap_servers(self) -> str:
        return ",".join(self.bootstrap)

    def create_unique_topic(self, partitions: int = 1) -> str:
        name = f"bench-{next(self._numbers)}"
        self._embedded.create_topic(name, partitions, 1)
        return name


@pytest.fixture(scope="module")
def mock() -> Iterator[MockKafka]:
    with EmbeddedKafka() as embedded:
        yield MockKafka(embedded)
