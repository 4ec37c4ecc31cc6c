"""The records that the client of one socket writes, while they are under way."""

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

MAX_IN_FLIGHT = 100  # of one socket, under way


class SocketProducer:
    """See the module. under_way: how many."""

    __slots__ = ("_handshake_scope", "_routes", "_writers", "in_flight")

    def __init__(self, routes: Routes, handshake_scope: HandshakeScope) -> None:
        self._routes = routes
        self._handshake_scope = handshake_scope
        self._writers: dict[str, RecordWriter] = {}
        self.in_flight = 0

    def accept(self, message: ProduceMessage, *, is_closing: bool) -> None:
        """Raises RequestError if it comes too late, or is one too many."""
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
        """One that was taken on; what `produced` says of it. path: with its query; None to find one
        by the topic. Raises RequestError and KafkaError, and HTTPException 404."""
        try:
            await attempts.count_attempt()
            connection = self._handshake_scope.build_connection()
            try:
                letter = await parse_produce_message(self._routes, message, path, connection, token)
            except RequestError as exc:
                attempts.note_refused(exc.status)
                raise
            done = await self._get_writer(letter.cluster).send(
                letter.topic,
                letter.key,
                letter.value,
                letter.headers,
                idempotency_key=message.idempotency_key,
                scope=letter.scope,
                check_allowed=partial(check_current, self._routes, letter),
            )
        finally:
            self.in_flight -= 1
        told = {"topic": done.topic, "partition": done.partition, "offset": done.offset}
        return {**told, "repeated": True} if done.repeated else told

    def _get_writer(self, cluster: str) -> RecordWriter:
        writer = self._writers.get(cluster)
        if writer is None:
            writer = self._writers[cluster] = self._routes.hubs.get_hub(
                cluster
            ).publisher.create_writer()
        return writer
