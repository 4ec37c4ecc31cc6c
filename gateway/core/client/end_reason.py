"""Name the reasons for which a stream ends.

The first reason that `SharedCursor.end` is given counts. `gateway/README.md` lists the modules that
give them, and the README of the project the messages to clients.
"""

from __future__ import annotations

from enum import StrEnum


class EndReason(StrEnum):
    """Why a stream ended: the `reason` of an `end` event, and of `gateway_streams_ended_total`.

    The comment of each member says who gives it, and when. `UNSENT_END_REASONS` are in no event.
    """

    # The stream itself, as it takes what it is sent.
    UNTIL = "until"  # everything up to the end that the client asked for was sent
    # The client fell out of the ring, and `slowClient` of its route is `disconnect`; or what waits
    # for it is too much of `memory`.
    SLOW = "slow"
    OFFSET_OUT_OF_RANGE = "offset-out-of-range"  # records are lost: `offsetOutOfRange` is `fail`
    # The hub.
    LIFETIME = "lifetime"  # the stream has been open for as long as its route allows
    TOKEN_EXPIRED = "token-expired"  # what let the client in has expired, and was not renewed
    DRAIN = "drain"  # the gateway shuts down
    ERROR = "error"  # reading for the client failed by a fault of the gateway
    WAIT = "wait"  # the page of a long poll is complete
    # What clients may have: a reload, a renewal, or an operator.
    ACCESS_CHANGED = "access-changed"  # a reload or a renewal left the client without access
    ROUTE_REMOVED = "route-removed"  # a reload removed its route or its topic
    ACCESS_REVOKED = "access-revoked"  # an operator blocked the identity of the client
    PAUSED = "paused"  # an operator paused the route
    DISCONNECTED = "disconnected"  # an operator ended the stream
    # A stream that cannot be served. An EventSource is told so by a stream of one `end`, as it
    # would not connect again after any other response.
    BUSY = "busy"  # too many streams, or too many requests of the client
    KAFKA_UNAVAILABLE = "kafka-unavailable"  # Kafka does not answer; also after a reload
    GUARD_UNAVAILABLE = "guard-unavailable"  # the server that a guard asks does not answer
    REFUSED = "refused"  # the query cannot be used; the `error` before it says why
    # The client.
    UNSUBSCRIBED = "unsubscribed"  # it ended the stream by a message over WebSocket
    CLOSED = "closed"  # its socket, its `Stream` of the Python API or that gateway was closed
    LEFT = "left"  # its connection was lost before an end was written; in metrics only
    # Another client goes on with the stream on the same connection, with another view.
    CHANGED = "changed"


UNSENT_END_REASONS = frozenset({EndReason.CLOSED, EndReason.LEFT, EndReason.CHANGED})
"""Reasons that are in no `end` event. The Python API reports `closed`, metrics count the others."""
