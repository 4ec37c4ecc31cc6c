"""Create the topics that the gateway itself needs, such as those of dead letters."""

from __future__ import annotations

from collections.abc import Mapping

from gateway.core.error_code import AUTHORIZATION_ERRORS, ErrorCode
from gateway.errors import AccessDenied, BrokerUnavailable, KafkaError
from gateway.kafka.client.cluster import Cluster
from gateway.kafka.client.connections import ConnectionRole
from gateway.kafka.protocol.topic_messages import BROKER_DEFAULT, CreateTopicsRequest

RETRIABLE_ERRORS = frozenset({ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NOT_CONTROLLER})


async def create_topic(
    cluster: Cluster,
    topic: str,
    *,
    partitions: int = BROKER_DEFAULT,
    replicas: int = BROKER_DEFAULT,
    configs: Mapping[str, str] | None = None,
) -> bool:
    """Create a topic, and return False if it exists. Brokers may take a moment to know of it.

    Raises:
        AccessDenied: The gateway may not create it.
        BrokerUnavailable: No broker created it now, or a broker did not answer.
        KafkaError: The broker refused; the message has its text.
    """
    nodes = [cluster.metadata.last_responder, *cluster.metadata.brokers]
    request = CreateTopicsRequest(topic, partitions, replicas, configs or {})
    # A dict keeps the order and drops the repeated node.
    for node in dict.fromkeys(node for node in nodes if node is not None):
        response = await cluster.connections.send(node, ConnectionRole.CONTROL, request)
        if not response.error:
            return True
        if response.error == ErrorCode.TOPIC_ALREADY_EXISTS:
            return False
        if response.error in AUTHORIZATION_ERRORS:
            message = f"the gateway may not create the topic {topic}; create it, or allow CREATE"
            raise AccessDenied(message, topic=topic)
        if response.error not in RETRIABLE_ERRORS:
            raise KafkaError(
                f"the topic {topic} was not created: {response.message or response.error}"
            )
    # Before KRaft only the controller creates topics, and it may be changing now.
    raise BrokerUnavailable(f"no broker creates the topic {topic} now; try again", retry_after=1.0)
