"""Reading records from one broker.

@MEASURED@
"""

from __future__ import annotations

from collections.abc import Mapping

from gateway.core.record import TopicPartition

from .connections import Connections, Link, Role
from .fetch_messages import FetchAnswer, Fetched, FetchRequest, Want
from .offsets import READ_COMMITTED
from .sessions import SESSION_ERRORS, FetchSession

__all__ = ["FetchSession", "Fetched", "Want", "fetch"]


async def fetch(
    connections: Connections,
    node: int,
    role: Role,
    wants: Mapping[TopicPartition, Want],
    *,
    max_wait: float = 0.5,
    min_bytes: int = 1,
    max_bytes: int = 16 << 20,
    isolation: int = READ_COMMITTED,
    rack: str = "",
    session: FetchSession | None = None,
) -> dict[TopicPartition, Fetched]:
    """What the broker has of `wants`, after at most `max_wait` seconds without any.

    session: of this node and role; then partitions without news are absent from the result,
             and only one fetch may be under way. None: every partition is in the result.
    rack:    where this gateway is; the leader may name a nearer replica (KIP-392).

    A broker that refuses the whole request gives each partition its code. Raises
    BrokerUnavailable, AuthenticationFailed.
    """
    link = await connections.connect(node, role)
    for _ in range(2):
        answer = await _once(
            connections,
            link,
            wants,
            session,
            FetchRequest(
                wants,
                max_wait=int(max_wait * 1000),
                min_bytes=min_bytes,
                max_bytes=max_bytes,
                isolation=isolation,
                rack=rack,
                by_id=all(want.topic_id is not None for want in wants.values()),
            ),
        )
        if answer.error not in SESSION_ERRORS:
            break
    if answer.error:
        return dict.fromkeys(wants, Fetched(answer.error))
    return answer.partitions


async def _once(
    connections: Connections,
    link: Link,
    wants: Mapping[TopicPartition, Want],
    session: FetchSession | None,
    request: FetchRequest,
) -> FetchAnswer:
    within = connections.request_timeout + request.max_wait / 1000
    if session is None:
        request.names = {w.topic_id: tp.topic for tp, w in wants.items() if w.topic_id}
        return await connections.ask(link, request, within=within)
    request.wants, request.forgotten = session.ask(wants, request.by_id)
    request.session_id, request.session_epoch = session.id, session.epoch
    request.names = session.names
    try:
        answer = await connections.ask(link, request, within=within)
    except BaseException:
        session.lost()  # also when cancelled: the broker may have counted the fetch
        raise
    if answer.error:
        session.lost()
    else:
        session.answered(answer.session_id)
    return answer
