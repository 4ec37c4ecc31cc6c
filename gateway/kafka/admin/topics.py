"""Topics of the gateway's own: dead letters, what it remembers."""

from __future__ import annotations

from collections.abc import Mapping

from gateway.errors import AccessDenied, BrokerUnavailable, KafkaError
from gateway.kafka.client.cluster import Cluster
from gateway.kafka.client.connections import Role
from gateway.kafka.protocol.topic_messages import DEFAULT, CreateTopicsRequest

EXISTS = 36
NOT_CONTROLLER = 41
DENIED = frozenset({29, 31})
PASSING = frozenset({7, NOT_CONTROLLER})


async def make_topic(
    cluster: Cluster,
    topic: str,
    *,
    partitions: int = DEFAULT,
    replicas: int = DEFAULT,
    configs: Mapping[str, str] | None = None,
) -> bool:
    """Make it; False where it exists. Brokers may take a moment to know of it.

    Raises AccessDenied, BrokerUnavailable, and KafkaError with what the broker says.
    """
    nodes = [cluster.metadata.answered, *cluster.metadata.brokers]
    request = CreateTopicsRequest(topic, partitions, replicas, configs or {})
    for node in dict.fromkeys(node for node in nodes if node is not None):
        made = await cluster.connections.send(node, Role.CONTROL, request)
        if not made.error:
            return True
        if made.error == EXISTS:
            return False
        if made.error in DENIED:
            what = f"the gateway may not make the topic {topic}; make it, or allow CREATE"
            raise AccessDenied(what, topic=topic)
        if made.error not in PASSING:
            raise KafkaError(f"the topic {topic} is not made: {made.message or made.error}")
    # before KRaft only the controller makes topics, and it may just be changing
    raise BrokerUnavailable(f"no broker makes the topic {topic}; try again", retry_after=1.0)
