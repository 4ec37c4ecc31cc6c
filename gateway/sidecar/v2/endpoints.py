"""Share what the endpoints of the dialect have in common that need no consumer instance."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from starlette.requests import Request
from starlette.responses import Response

from gateway.core.log.record import TopicPartition
from gateway.sidecar.context import Context
from gateway.sidecar.http.status import StatusError
from gateway.sidecar.topics import describe_partition

from .dialect import CONFLUENT, negotiate_content_type

Handler = Callable[[Request], Awaitable[Response]]


def create_endpoint(handler: Handler) -> Handler:
    """Wrap an endpoint so that all its errors are answered in the dialect."""

    async def endpoint(request: Request) -> Response:
        try:
            negotiate_content_type(request)
            return await handler(request)
        except Exception as exc:
            return CONFLUENT.build_error_response(request, exc)

    return endpoint


async def parse_partition(context: Context, request: Request) -> TopicPartition:
    """Return the partition of a path; raises StatusError 404, or as `describe_partition`."""
    topic, text = request.path_params["topic"], request.path_params["partition"]
    if not (text.isascii() and text.isdecimal() and len(text) <= 9):
        raise StatusError(404, f"{text[:40]!r} is no partition; use a number")
    tp = TopicPartition(topic, int(text))
    await describe_partition(context, tp)
    return tp
