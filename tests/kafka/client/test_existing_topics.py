"""A writer learns whether its topic exists, without creating it."""

from __future__ import annotations

import pytest

from gateway.errors import AuthenticationFailed, BrokerUnavailable, UnknownTopic
from gateway.kafka.client.cluster import (
    Cluster,
    ClusterSettings,
    get_existing_topic,
    require_reachable,
)
from gateway.kafka.embedded import EmbeddedKafka


class UnreachableCluster(Cluster):
    """A cluster whose brokers cannot be used for the reason `error`."""

    def __init__(self, error: BrokerUnavailable | AuthenticationFailed) -> None:
        super().__init__(ClusterSettings(["127.0.0.1:1"]))
        self._reason = error

    @property
    def error(self) -> BrokerUnavailable | AuthenticationFailed:
        return self._reason


async def test_a_topic_that_exists_is_watched_from_then_on():
    with EmbeddedKafka({"orders": 3}) as kafka:
        async with Cluster(ClusterSettings(kafka.bootstrap)) as cluster:
            topic = await get_existing_topic(cluster, "orders")
            assert sorted(topic.partitions) == [0, 1, 2]
            assert cluster.get_topic("orders") == topic


async def test_a_topic_that_does_not_exist_is_an_error_and_is_not_created():
    with EmbeddedKafka({"orders": 3}) as kafka:
        async with Cluster(ClusterSettings(kafka.bootstrap)) as cluster:
            with pytest.raises(UnknownTopic):
                await get_existing_topic(cluster, "missing")
            assert await cluster.list_topics() == {"orders"}


@pytest.mark.parametrize("error_type", [BrokerUnavailable, AuthenticationFailed])
async def test_an_unreachable_cluster_is_a_new_error_of_the_same_kind(error_type):
    """The cluster's own exception would gather the tracebacks of all requests."""
    cluster = UnreachableCluster(error_type("no broker answers", retry_after=3.0))
    with pytest.raises(error_type) as caught:
        require_reachable(cluster)
    assert caught.value is not cluster.error
    assert (str(caught.value), caught.value.retry_after) == ("no broker answers", 3.0)


async def test_without_a_retry_time_it_is_one_second():
    with pytest.raises(BrokerUnavailable) as caught:
        require_reachable(UnreachableCluster(BrokerUnavailable("no broker answers")))
    assert caught.value.retry_after == 1.0
