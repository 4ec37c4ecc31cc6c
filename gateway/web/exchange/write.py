"""Respond to requests that write a record: with where it is, or with the reply to it."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from gateway.config import With
from gateway.web.routing.paths import Match
from gateway.web.routing.routes import Routes

from . import produce, reply
from .exchange import Exchange


class ProduceExchange(Exchange):
    def describe(self, with_: With) -> str:
        return "writes a record" + (", and answers with its reply" if with_.reply_topic else "")

    async def respond(self, routes: Routes, match: Match, request: Request) -> Response:
        if match.is_reply:
            return await reply.poll_reply(routes, match, request)
        if match.route.with_.reply_topic is not None:
            return await reply.request_reply(routes, match, request)
        return await produce.respond(routes, match, request)
