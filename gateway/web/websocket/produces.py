"""The records that the client of one socket writes, while they are under way."""

from __future__ import annotations

from functools import partial
from typing import Any

from gateway.errors import RequestError
from gateway.hub.writes.writer import Writer
from gateway.web.exchange.write_request import check_current, letter_of
from gateway.web.routing.attempts import Attempts
from gateway.web.routing.routes import Routes

from .caller import Caller
from .messages import BadMessage, Produce

MOST_PRODUCES = 100  # of one socket, under way


class Produces:
    """See the module. under_way: how many."""

    __slots__ = ("_caller", "_routes", "_writers", "under_way")

    def __init__(self, routes: Routes, caller: Caller) -> None:
        self._routes = routes
        self._caller = caller
        self._writers: dict[str, Writer] = {}
        self.under_way = 0

    def take_on(self, said: Produce, *, closing: bool) -> None:
        """Raises RequestError if it comes too late, or is one too many."""
        if self._routes.hubs.draining or closing:
            detail = "this connection is about to be closed; repeat it over a new one"
            raise RequestError(503, "Draining", detail)
        if self.under_way >= MOST_PRODUCES:
            detail = f"{MOST_PRODUCES} records of this socket are under way; wait for 'produced'"
            raise BadMessage("Too many produces", detail, said.id)
        self.under_way += 1

    async def write(
        self, said: Produce, path: str | None, token: str | None, attempts: Attempts
    ) -> dict[str, Any]:
        """One that was taken on; what `produced` says of it. path: with its query; None to find one
        by the topic. Raises RequestError and KafkaError, and HTTPException 404."""
        try:
            await attempts.count()
            connection = self._caller.connection()
            try:
                letter = await letter_of(self._routes, said, path, connection, token)
            except RequestError as exc:
                attempts.note_refused(exc.status)
                raise
            done = await self._to(letter.cluster).send(
                letter.topic,
                letter.key,
                letter.value,
                letter.headers,
                idempotency_key=said.idempotency_key,
                scope=letter.scope,
                allowed=partial(check_current, self._routes, letter),
            )
        finally:
            self.under_way -= 1
        told = {"topic": done.topic, "partition": done.partition, "offset": done.offset}
        return {**told, "repeated": True} if done.repeated else told

    def _to(self, cluster: str) -> Writer:
        writer = self._writers.get(cluster)
        if writer is None:
            writer = self._writers[cluster] = self._routes.hubs.of(cluster).publisher.writer()
        return writer
