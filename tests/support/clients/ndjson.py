"""A program that reads lines of JSON with positions, and comes back with the last one."""

from __future__ import annotations

from typing import Any, ClassVar

from support.clients.raw import RawClient, ResponseHead
from support.ndjson_parser import NdjsonParser


class NdjsonClient(RawClient):
    """Like an EventSource, but Kafka being away for a while (503) does not end it."""

    name: ClassVar[str] = "ndjson"
    media_type: ClassVar[str] = "application/x-ndjson"

    def __init__(self, url: str, **options: Any) -> None:
        super().__init__(f"{url}{'&' if '?' in url else '?'}positions", **options)

    def create_parser(self) -> NdjsonParser:
        return NdjsonParser(self._last_event_id)

    def should_give_up(self, response: ResponseHead) -> bool:
        return response.status != 503
