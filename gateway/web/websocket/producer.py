"""Write the records that the client of one socket sends."""

from __future__ import annotations

from functools import partial
from typing import Any

from gateway.errors import RequestError
from gateway.hub.writes.writer import RecordWriter
from gateway.web.exchange.write_request import check_current, parse_produce_message
from gateway.web.routing.attempts import Attempts
from gateway.web.routing.routes import Routes

from .handshake_scope import HandshakeScope
from .messages import BadMessageError, ProduceMessage

MAX_IN_FLIGHT = 100  # records of one socket that are not acknowledged yet


class SocketProducer:
    """Writes the records of one socket.

    Created and owned by a `Session`, with the first record. It has one writer for each cluster that
    the client writes to.

    Attributes:
        in_flight: How many records were accepted and are not acknowledged or refused yet.
    """

    __slots__ = ("_handshake_scope", "_routes", "_writers", "in_flight")

    def __init__(self, routes: Routes, handshake_scope: HandshakeScope) -> None:
        self._routes = routes
        self._handshake_scope = handshake_scope
        self._writers: dict[str, RecordWriter] = {}
        self.in_flight = 0

    def accept(self, message: ProduceMessage, *, is_closing: bool) -> None:
        """Count a record that `write_record` must be called for.

        Args:
            is_closing: Whether the session is about to close the socket.

        Raises:
            RequestError: 503, if the connection is about to be closed.
            BadMessageError: Too many records are in flight.
        """
        if self._routes.hubs.draining or is_closing:
            detail = "this connection is about to be closed; repeat it over a new one"
            raise RequestError(503, "Draining", detail)
        if self.in_flight >= MAX_IN_FLIGHT:
            detail = f"{MAX_IN_FLIGHT} records of this socket are under way; wait for 'produced'"
            raise BadMessageError("Too many produces", detail, message.id)
        self.in_flight += 1

    async def write_record(
        self, message: ProduceMessage, path: str | None, token: str | None, attempts: Attempts
    ) -> dict[str, Any]:
        """Write a record that was accepted.

        Args:
            path: The path and query of the route; None to find the route by the topic.
            token: The bearer token of the socket.
            attempts: The attempts of the socket, which this one is added to.

        Returns:
            The members of the `produced` message.

        Raises:
            RequestError: The record is refused.
            KafkaError: Kafka does not answer.
            HTTPException: 404, if no route has the path.
        """
        try:
            await attempts.count_attempt()
            connection = self._handshake_scope.build_connection()
            try:
                write_request = await parse_produce_message(
                    self._routes, message, path, connection, token
                )
            except RequestError as exc:
                attempts.note_refused(exc.status)
                raise
            result = await self._get_writer(write_request.cluster).send(
                write_request.topic,
                write_request.key,
                write_request.value,
                write_request.headers,
                idempotency_key=message.idempotency_key,
                scope=write_request.scope,
                check_allowed=partial(check_current, self._routes, write_request),
            )
        finally:
            self.in_flight -= 1
        members = {"topic": result.topic, "partition": result.partition, "offset": result.offset}
        return {**members, "repeated": True} if result.repeated else members

    def _get_writer(self, cluster: str) -> RecordWriter:
        writer = self._writers.get(cluster)
        if writer is None:
            writer = self._writers[cluster] = self._routes.hubs.get_hub(cluster).create_writer()
        return writer
