"""Run `gateway tail`: choose the source, follow it, keep the position, handle signals."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import ssl
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from gateway.cli.kafka_connection import KafkaSource, find_connection_error
from gateway.cli.output import select_colours
from gateway.config.types.address import create_trusting_context
from gateway.core.log.recovery import Cause
from gateway.errors import GatewayError

from .follower import StreamFollower
from .printer import OutputClosed, OutputWriter, Printer, StatusReporter
from .source import SseSource
from .target import OutputFormat, PositionFile, Target

SAVE_INTERVAL_S = 1.0  # seconds between two writes of the position
MAX_PRINTED_POSITION_CHARS = 4096  # a longer position is not printed for --from
NO_KAFKA_MESSAGE = "this Kafka answers, but not in time; see --servers and --config"


@dataclass(frozen=True)
class TailOptions:
    """The options of the command. `kafka` is None for a URL; only `cacert` is trusted, if given."""

    kafka: KafkaSource | None = None
    style: OutputFormat | None = None
    quiet: bool = False
    strict: bool = False
    position: Path | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    cacert: Path | None = None
    insecure: bool = False


def run_tail(target: Target, options: TailOptions) -> None:
    """Follow a target until it ends, standard output is closed, or SIGTERM arrives."""
    asyncio.run(_TailSession(target, options).run())


class _TailSession:
    def __init__(self, target: Target, options: TailOptions) -> None:
        self._target = target
        self._options = options
        self._notes = StatusReporter(quiet=options.quiet, colours=select_colours(sys.stderr))
        self._position_file = PositionFile(options.position) if options.position else None
        self._follower: StreamFollower | None = None

    async def run(self) -> None:
        query = self._target.query
        position = (self._position_file.read() if self._position_file else None) or query.position
        output = OutputWriter(sys.stdout.fileno())
        tty = sys.stdout.isatty()
        style = self._options.style or (OutputFormat.PRETTY if tty else OutputFormat.JSON)
        async with self._open_source() as source:
            follower = StreamFollower(
                source,
                Printer(style, tty=tty, colours=select_colours(sys.stdout)),
                output,
                self._notes,
                position=position,
                count=query.count,
                strict=self._options.strict,
                explain_absence=None if self._target.scheme else self._explain_absence,
            )
            self._follower = follower
            await self._follow(follower, output)

    async def _follow(self, follower: StreamFollower, output: OutputWriter) -> None:
        """Run the follower until one of the tasks ends; save the position in any case."""
        tasks = [
            asyncio.ensure_future(coro)
            for coro in (
                follower.run(),
                output.wait_closed(),
                self._save_position_periodically(follower),
            )
        ]
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, tasks[0].cancel)
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                if task.done() and not task.cancelled():
                    with contextlib.suppress(OutputClosed):
                        task.result()
        except asyncio.CancelledError:
            self._report_how_to_resume(follower.position)
            raise
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._save_position(follower)

    async def _save_position_periodically(self, follower: StreamFollower) -> None:
        while True:
            await asyncio.sleep(SAVE_INTERVAL_S)
            self._save_position(follower)

    def _save_position(self, follower: StreamFollower) -> None:
        if self._position_file is not None:
            self._position_file.write(follower.position)

    def _report_how_to_resume(self, position: str | None) -> None:
        if self._position_file is not None:
            self._notes.report(
                f"to go on here, run the same command; {self._position_file.path} has the position"
            )
        elif position is not None and len(position) <= MAX_PRINTED_POSITION_CHARS:
            self._notes.report(f"to go on here: --from {position}")
        elif position is not None:
            self._notes.report(
                "the position is too long to print; to go on where it stopped, use --position FILE"
            )

    # sources

    @asynccontextmanager
    async def _open_source(self) -> AsyncIterator[SseSource]:
        if self._target.scheme:
            source = await asyncio.to_thread(self._create_remote_source)
            try:
                yield source
            finally:
                await source.close()
            return
        from .in_process import open_in_process

        if self._options.quiet:
            logging.getLogger().addHandler(logging.NullHandler())
        # The gateway in this process reports what aiokafka does.
        logging.getLogger("aiokafka").addHandler(logging.NullHandler())
        outage_log = logging.getLogger("gateway.kafka.client.outages")
        outage_log.addFilter(self._should_log_outage)
        try:
            async with open_in_process(self._target, self._kafka) as source:
                yield source
        finally:
            outage_log.removeFilter(self._should_log_outage)

    def _create_remote_source(self) -> SseSource:
        tls: ssl.SSLContext | bool = True
        if self._target.scheme == "https":
            cacert = self._options.cacert
            try:
                tls = create_trusting_context(cacert)
            except ValueError as exc:
                raise GatewayError(f"--cacert {exc}") from exc
            if self._options.insecure:
                tls.check_hostname = False
                tls.verify_mode = ssl.CERT_NONE
        return SseSource(self._target, headers=self._options.headers, tls=tls)

    @property
    def _kafka(self) -> KafkaSource:
        assert self._options.kafka is not None
        return self._options.kafka

    async def _explain_absence(self) -> str:
        error = await find_connection_error(self._kafka, self._target.topics, "tail")
        return NO_KAFKA_MESSAGE if error is None else str(error)

    def _should_log_outage(self, record: logging.LogRecord) -> bool:
        """Return whether a log line says more than the error or response of the stream."""
        was_opened = self._follower is not None and self._follower.was_opened
        cause = getattr(record, "cause", None)
        return was_opened and cause not in (Cause.UNKNOWN_TOPIC, Cause.DENIED)
