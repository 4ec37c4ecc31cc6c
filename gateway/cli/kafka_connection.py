"""Connect to a Kafka for one command, which ends with an error if no broker answers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from gateway.errors import BrokerUnavailable

if TYPE_CHECKING:
    from gateway.config import Kafka
    from gateway.kafka.client.cluster import Cluster

CONNECT_TIMEOUT_S = 15.0  # seconds until a broker must have answered


@asynccontextmanager
async def open_cluster(kafka: Kafka, name: str = "") -> AsyncIterator[Cluster]:
    """Connect to a cluster, and close the connections after the block.

    Args:
        kafka: Its settings; its servers must not be embedded.
        name: Its name in the configuration; empty if there is only one.

    Yields:
        The cluster, of which a broker has answered.

    Raises:
        BrokerUnavailable: No broker answers.
        AuthenticationFailed: The brokers refuse the credentials, or their certificate is refused.
    """
    from gateway.kafka.client.cluster import Cluster, ClusterSettings

    # Failures are reported once, as errors.
    for name in ("aiokafka", "gateway.kafka"):
        logging.getLogger(name).addHandler(logging.NullHandler())
    async with Cluster(ClusterSettings.from_config(kafka, name=name)) as cluster:
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                await cluster.metadata.refresh("a command begins")
        except TimeoutError:
            servers = ", ".join(cluster.settings.servers)
            raise BrokerUnavailable(
                f"no broker of {servers} answers; check kafka.servers"
            ) from None
        yield cluster
