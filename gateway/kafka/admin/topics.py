"""Topics of the gateway's own: dead letters, what it remembers."""

from __future__ import annotations

from collections.abc import Mapping

from gateway.errors import AccessDenied, BrokerUnavailable, KafkaError
from gateway.kafka.client.cluster import Cluster
from gateway.kafka.client.connections import ConnectionRole
from gateway.kafka.protocol.topic_messages import BROKER_DEFAULT, CreateTopicsRequest

TOPIC_ALREADY_EXISTS = 36
NOT_CONTROLLER = 41
AUTHORIZATION_ERRORS = frozenset({29, 31})
RETRIABLE_ERRORS = frozenset({7, NOT_CONTROLLER})


async def create_topic(
    cluster: Cluster,
    topic: str,
    *,
    partitions: int = BROKER_DEFAULT,
    replicas: int = BROKER_DEFAULT,
    configs: Mapping[str, str] | None = None,
) -> bool:
    """Make it; False where it exists. Brokers may take a moment to know of it.

    Raises AccessDenied, BrokerUnavailable, and KafkaError with what the broker says.
    """
    nodes = [cluster.metadata.last_responder, *cluster.metadata.brokers]
    request = CreateTopicsRequest(topic, partitions, replicas, configs or {})
    for node in dict.fromkeys(node for node in nodes if node is not None):
        made = await cluster.connections.send(node, ConnectionRole.CONTROL, request)
        if not made.error:
            return True
        if made.error == TOPIC_ALREADY_EXISTS:
            return False
        if made.error in AUTHORIZATION_ERRORS:
            what = f"the gateway may not make the topic {topic}; make it, or allow CREATE"
            raise AccessDenied(what, topic=topic)
        if made.error not in RETRIABLE_ERRORS:
            raise KafkaError(f"the topic {topic} is not made: {made.message or made.error}")
    # before KRaft only the controller makes topics, and it may just be changing
    raise BrokerUnavailable(f"no broker makes the topic {topic}; try again", retry_after=1.0)
