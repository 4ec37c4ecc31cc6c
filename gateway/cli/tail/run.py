"""One `gateway tail`, from its options to its exit code."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import ssl
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from gateway.core.log.recovery import Cause
from gateway.errors import GatewayError

from .follow import Follower
from .item import Source
from .notes import Notes
from .output import Closed, Output
from .place import PositionFile
from .printing import Printer
from .screen import colours_for
from .style import Style
from .target import Target

KEEP = 1.0  # seconds between two writes of the position
SHORT = 4096  # characters of a position that may be shown
NO_KAFKA = "this Kafka does not answer, or refuses us; see --servers and --config"


@dataclass(frozen=True)
class Options:
    """servers, config: where topics are. cacert: a file. insecure: no certificate is checked."""

    servers: Sequence[str] = ()
    config: Path | None = None
    style: Style | None = None
    quiet: bool = False
    strict: bool = False
    position: Path | None = None
    headers: Mapping[str, str] | None = None
    cacert: Path | None = None
    insecure: bool = False


def tail(target: Target, options: Options) -> None:
    """Follow it until its end, until standard output is closed, or SIGTERM.

    Raises GatewayError, and KeyboardInterrupt after saying how to go on.
    """
    asyncio.run(_Tail(target, options).run())


class _Tail:
    def __init__(self, target: Target, options: Options) -> None:
        self._target = target
        self._options = options
        self._notes = Notes(quiet=options.quiet, colours=colours_for(sys.stderr))
        self._file = PositionFile(options.position) if options.position else None
        self._told_to_end = False

    async def run(self) -> None:
        query = self._target.query
        position = (self._file.read() if self._file else None) or query.position
        output = Output(sys.stdout.fileno())
        tty = sys.stdout.isatty()
        style = self._options.style or (Style.PRETTY if tty else Style.JSON)
        async with self._source() as source:
            follower = Follower(
                source,
                Printer(style, tty=tty, colours=colours_for(sys.stdout)),
                output,
                self._notes,
                position=position,
                count=query.count,
                strict=self._options.strict,
                absent=None if self._target.scheme else NO_KAFKA,
            )
            await self._follow(follower, output)

    async def _follow(self, follower: Follower, output: Output) -> None:
        """The position is kept whatever happens."""
        tasks = [
            asyncio.ensure_future(work)
            for work in (follower.run(), output.closed(), self._keep_forever(follower))
        ]
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, tasks[0].cancel)
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                if task.done() and not task.cancelled():
                    with contextlib.suppress(Closed):
                        task.result()
        except asyncio.CancelledError:
            self._say_how_to_go_on(follower.position)
            raise
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._keep(follower)

    async def _keep_forever(self, follower: Follower) -> None:
        while True:
            await asyncio.sleep(KEEP)
            self._keep(follower)

    def _keep(self, follower: Follower) -> None:
        if self._file is not None:
            self._file.keep(follower.position)

    def _say_how_to_go_on(self, position: str | None) -> None:
        if self._file is not None:
            self._notes.say(
                f"the same command goes on here, from the position in {self._file.path}"
            )
        elif position is not None and len(position) <= SHORT:
            self._notes.say(f"to go on here: --from {position}")
        elif position is not None:
            self._notes.say("to go on where it stopped, use --position FILE from the start")

    # sources

    @asynccontextmanager
    async def _source(self) -> AsyncIterator[Source]:
        target, headers = self._target, self._options.headers or {}
        if not target.scheme:
            async with self._topics() as source:
                yield source
            return
        source = await asyncio.to_thread(self._remote, target, headers)
        try:
            yield source
        finally:
            await source.close()

    def _remote(self, target: Target, headers: Mapping[str, str]) -> Source:
        secure = target.scheme in ("https", "wss")
        tls = self._tls() if secure else None
        if target.scheme in ("ws", "wss"):
            from .websocket import WebSocketSource

            return WebSocketSource(target, headers=headers, tls=tls)
        from .sse import SseSource

        return SseSource(target, headers=headers, tls=tls or True)

    @asynccontextmanager
    async def _topics(self) -> AsyncIterator[Source]:
        from .local import PATH, serving, settings_for
        from .sse import SseSource

        options, topics = self._options, self._target.topics
        settings = settings_for(topics, options.servers, options.config)
        target = replace(self._target, scheme="http", place="in-process", path=PATH)
        shown = ",".join(settings.clusters[""].servers)
        if options.quiet:
            logging.getLogger().addHandler(logging.NullHandler())
        logging.getLogger("aiokafka").addHandler(logging.NullHandler())  # ours are enough
        logging.getLogger("gateway.kafka.client.outages").addFilter(_is_not_of_topic)
        async with serving(settings) as transport:
            source = SseSource(target, headers={}, transport=transport, shown=shown)
            try:
                yield source
            finally:
                await source.close()

    def _tls(self) -> ssl.SSLContext:
        """Of the system's certificates, or those of the file alone."""
        cacert = self._options.cacert
        try:
            context = ssl.create_default_context(cafile=str(cacert) if cacert else None)
        except (OSError, ssl.SSLError) as exc:
            raise GatewayError(f"--cacert {cacert}: no certificates in PEM ({exc})") from exc
        if self._options.insecure:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context


def _is_not_of_topic(record: logging.LogRecord) -> bool:
    """Return whether a line of the log says more than the answer of the stream does."""
    return getattr(record, "cause", None) not in (Cause.UNKNOWN_TOPIC, Cause.DENIED)
