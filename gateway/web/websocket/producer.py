"""Write the records that the client of one socket sends."""

from __future__ import annotations

from functools import partial
from typing import Any

from gateway.errors import RequestError
from gateway.hub.writes.writer import RecordWriter
from gateway.web.exchange.write_request import check_current, parse_produce_message
from gateway.web.routing.attempts import Attempts
from gateway.web.routing.routes import Routes

from .handshake import HandshakeScope
from .messages import BadMessageError, ProduceMessage

MAX_IN_FLIGHT = 100  # records of one socket that are not acknowledged yet


class SocketProducer:
    """Writes the records of one socket, with a writer for each cluster."""

    __slots__ = ("_handshake_scope", "_routes", "_writers", "in_flight")

    def __init__(self, routes: Routes, handshake_scope: HandshakeScope) -> None:
        self._routes = routes
        self._handshake_scope = handshake_scope
        self._writers: dict[str, RecordWriter] = {}
        self.in_flight = 0

    def accept(self, message: ProduceMessage, *, is_closing: bool) -> None:
        """Count a record for `write_record`, or raise if none may be written now."""
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
        """Write a record that was accepted, and return the members of the `produced` message."""
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
