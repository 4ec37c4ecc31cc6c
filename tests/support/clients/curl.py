"""curl -N: what everyone tries first. It reads once; what it prints is parsed strictly here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from support.clients.client import ProcessClient, ReceivedEvent
from support.sse import SseParser


class CurlClient(ProcessClient):
    """options: further options of curl, such as --compressed."""

    name: ClassVar[str] = "curl"
    reconnects_itself: ClassVar[bool] = False
    extra_options: Sequence[str] = ()
    _parser = SseParser()

    async def build_command(self) -> Sequence[str]:
        headers = dict(self.headers)
        if self.last_event_id:
            headers["Last-Event-ID"] = self.last_event_id
        self._parser = SseParser(self.last_event_id)
        told = [word for name, value in headers.items() for word in ("-H", f"{name}: {value}")]
        quiet = ("-q", "-N", "-sS", "--fail", "--noproxy", "*")
        return ["curl", *quiet, *self.extra_options, *told, self.url]

    def feed_output(self, piece: bytes) -> None:
        for event in self._parser.feed(piece):
            self.events.append(
                ReceivedEvent(event=event.event_type, id=event.last_event_id, data=event.data)
            )
