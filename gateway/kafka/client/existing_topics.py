"""Get the metadata of a topic for a writer, which must not create the topic by asking for it."""

from __future__ import annotations

from gateway.errors import AuthenticationFailed, BrokerUnavailable
from gateway.kafka.protocol.requests import TopicMetadata

from .cluster import Cluster


def require_reachable(cluster: Cluster) -> None:
    """Raise the cluster's error, so that no write is accepted that cannot be sent."""
    error = cluster.error
    if error is not None:
        # A new exception: the cluster's own would gather the tracebacks of all requests.
        error_type = AuthenticationFailed if isinstance(error, AuthenticationFailed) else None
        raise (error_type or BrokerUnavailable)(str(error), retry_after=error.retry_after or 1.0)


def get_known_topic(cluster: Cluster, name: str) -> TopicMetadata | None:
    topic = cluster.get_topic(name)
    return topic if topic is not None and topic.partitions and not topic.error else None


async def get_existing_topic(cluster: Cluster, name: str) -> TopicMetadata:
    topic = get_known_topic(cluster, name)
    if topic is None:
        require_reachable(cluster)
        topic = await watch_topic(cluster, name)
    return topic


async def watch_topic(cluster: Cluster, name: str) -> TopicMetadata:
    """Ask for the metadata of a topic, which must exist, and watch it from now on.

    Raises:
        UnknownTopic: The topic does not exist.
        AccessDenied: The brokers do not let the gateway see the topic.
        BrokerUnavailable: No broker answers, or the topic has no partitions yet.
    """
    topic = await cluster.describe_topic(name)
    cluster.metadata.watch(name, topic)
    if not topic.partitions:
        raise BrokerUnavailable(f"topic {name} has no partitions yet", retry_after=1.0)
    return topic
