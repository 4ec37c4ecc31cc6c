"""How the consumer is asked and answers in Confluent's words. See `dialect.Dialect`."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from gateway.core.log.record import TopicPartition
from gateway.errors import GatewayError
from gateway.formats.codec import Format
from gateway.sidecar.consumer.dialect import listed
from gateway.sidecar.consumer.instance import Instance
from gateway.sidecar.consumer.record_json import Headers, paired_headers
from gateway.sidecar.context import Context
from gateway.sidecar.http.spec import Operation
from gateway.sidecar.http.status import Refusal, answer, headers_of

from . import media
from .errors import NotJson, body_of, invalid

log = logging.getLogger(__name__)


class Confluent:
    name = "v2"
    bare = True

    def body(self, operation: Operation, data: bytes, kind: str | None) -> Any:
        supported(kind)
        value = parsed(operation, data)
        try:
            operation.check(value)
        except Refusal as exc:
            raise invalid(exc) from None
        return value

    def answer(self, request: Request, body: Any, status: int = 200) -> Response:
        return typed(answer(body, status), answered_as(request))

    def records(self, request: Request, instance: Instance, body: bytes) -> Response:
        format = _format(instance)
        kind = answered_as(request)
        return typed(answer(body), media.of_format(format) if kind == media.PLAIN else kind)

    def refusal(self, request: Request, exc: Exception) -> Response:
        if not isinstance(exc, (GatewayError, HTTPException)):
            log.error("%s %s failed", request.method, request.url.path, exc_info=exc)
        status, body = body_of(exc)
        made = answer(body, status, headers_of(exc, status))
        return typed(made, answered_as(request, strictly=False))

    def created(self, name: str, base_uri: str) -> Any:
        return {"instance_id": name, "base_uri": base_uri}

    def topics(self, instance: Instance, topics: Sequence[str]) -> Any:
        return {"topics": list(topics)}

    def partitions(self, tps: Iterable[TopicPartition]) -> Any:
        return {"partitions": listed(tps)}

    def formats(
        self, request: Request, instance: Instance, context: Context
    ) -> Callable[[str], tuple[Format, Format]]:
        """An instance has one; a client that names only others gets none of its records."""
        format = _format(instance)
        named = [media.parsed(each) for each in media.accepted(request.headers)]
        wanted = {each.format for each in named if each is not None and each.format is not None}
        if wanted and format not in wanted:
            has = format.name.lower()
            what = f"{instance.name} reads {has}, and Accept names others; accept that, or PLAIN"
            what = what.replace("PLAIN", media.PLAIN)
            raise Refusal(406, what, code="FORMAT_MISMATCH")
        return lambda topic: (format, format)

    def headers(self, request: Request) -> Callable[[Headers], Any]:
        return paired_headers


def _format(instance: Instance) -> Format:
    return instance.wishes.format or Format.BINARY


def parsed(operation: Operation, data: bytes) -> Any:
    """A body as JSON. Raises NotJson."""
    try:
        return operation.parsed(data, None)
    except Refusal as exc:
        raise NotJson(str(exc)) from None


def supported(kind: str | None) -> media.Media:
    """What a request's body is. Raises Refusal 415."""
    text = (kind or "").partition(";")[0].strip().lower()
    found = media.parsed(text)
    if found is None and text not in media.UNTOLD:
        what = f"the body is {text[:80]}; send {media.PLAIN}, or application/json"
        raise Refusal(415, what)
    return found or media.Media(None)


def answered_as(request: Request, *, strictly: bool = True) -> str:
    """The content type of an answer. Raises Refusal 406, where it is taken strictly."""
    names = list(media.accepted(request.headers))
    for name in names:
        if media.parsed(name) is not None:
            return media.PLAIN
        if name in media.ANYTHING:
            return media.JSON if name == media.JSON else media.PLAIN
    if names and strictly:
        what = f"nothing of Accept can be given; accept {media.PLAIN} or application/json"
        raise Refusal(406, what)
    return media.PLAIN


def typed(made: Response, kind: str) -> Response:
    made.headers["Content-Type"] = kind
    return made


CONFLUENT = Confluent()
