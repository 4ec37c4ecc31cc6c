"""Reading records from one broker, and why it is done by requests of our own.

Measured: Kafka 4.3.1, aiokafka 0.14 on uvloop, 600,000 records of 200 bytes in 12 partitions
of one broker, two busy cores shared with it; records a second, by the clock and by CPU:

| way | clock | CPU | exposes |
|---|---|---|---|
| one aiokafka consumer, getmany | 0.50-0.52 M | 0.55-0.63 M | records, out of range |
| twelve aiokafka consumers | 0.49-0.57 M | 0.60-0.61 M | the same, for each partition alone |
| this, with `batches.decode` | 0.47-0.92 M | 0.77-1.03 M | all below |

What the consumer hides is what the promises need: the error of each partition, leader epochs
(it sends -1, so a deposed leader answers it), topic ids (a recreated topic looks like the same
one), the next offset past control, aborted and compacted records, the last stable offset, the
log start, where logs diverge. It also has one fetch in flight per broker for everything, while
here the live tail and catch-up have a connection each.
"""

from __future__ import annotations

from collections.abc import Mapping

from gateway.core.log.record import TopicPartition
from gateway.kafka.client.connections import BrokerConnection, ConnectionRole, Connections
from gateway.kafka.client.offsets import READ_COMMITTED
from gateway.kafka.protocol.fetch_messages import (
    FetchedPartition,
    FetchRequest,
    FetchResponse,
    FetchTarget,
)

from .fetch_sessions import SESSION_ERRORS, FetchSession

__all__ = ["FetchSession", "FetchTarget", "FetchedPartition", "fetch", "fetch_on_connection"]


async def fetch(
    connections: Connections,
    node: int,
    role: ConnectionRole,
    wants: Mapping[TopicPartition, FetchTarget] | FetchSession,
    *,
    max_wait: float = 0.5,
    min_bytes: int = 1,
    max_bytes: int = 16 << 20,
    isolation: int = READ_COMMITTED,
    rack: str = "",
) -> dict[TopicPartition, FetchedPartition]:
    """What the broker has of `wants`, after at most `max_wait` seconds without any.

    wants: of a session, which is of this node and role: then partitions without news are absent
           from the result, and only one fetch may be under way. Else all are in the result.
    rack:  where this gateway is; the leader may name a nearer replica (KIP-392).

    A broker that refuses the whole request gives each partition its code. Raises
    BrokerUnavailable, AuthenticationFailed.
    """
    link = await connections.connect(node, role)
    return await fetch_on_connection(
        connections,
        link,
        wants,
        max_wait=max_wait,
        min_bytes=min_bytes,
        max_bytes=max_bytes,
        isolation=isolation,
        rack=rack,
    )


async def fetch_on_connection(
    connections: Connections,
    connection: BrokerConnection,
    wants: Mapping[TopicPartition, FetchTarget] | FetchSession,
    *,
    max_wait: float,
    min_bytes: int,
    max_bytes: int,
    isolation: int,
    rack: str,
) -> dict[TopicPartition, FetchedPartition]:
    """As `fetch`, on a link already there."""
    session = wants if isinstance(wants, FetchSession) else FetchSession.create_sessionless(wants)
    wait = int(max_wait * 1000)
    for _ in range(2):
        request = FetchRequest(
            {},
            wait,
            min_bytes,
            max_bytes,
            isolation,
            rack,
            uses_topic_ids=session.can_use_topic_ids,
        )
        answer = await _send_fetch(connections, connection, session, request)
        if answer.error not in SESSION_ERRORS:
            break
    if answer.error:
        return dict.fromkeys(session.wants, FetchedPartition(answer.error))
    return answer.partitions


async def _send_fetch(
    connections: Connections,
    connection: BrokerConnection,
    session: FetchSession,
    request: FetchRequest,
) -> FetchResponse:
    request.targets, request.forgotten = session.take_changes()
    request.session_id, request.session_epoch = session.id, session.epoch
    request.topic_names = session.topic_names
    within = connections.request_timeout + request.max_wait_ms / 1000
    try:
        answer = await connections.send_on(connection, request, timeout=within)
    except BaseException:
        session.reset()  # also when cancelled: the broker may have counted the fetch
        raise
    if answer.error:
        session.reset()
    else:
        session.on_response(answer.session_id)
    return answer
