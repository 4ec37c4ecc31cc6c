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
from dataclasses import dataclass
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


@dataclass
class TailSession:
    """One run of the command, with its options.

    Attributes:
        kafka: The Kafka of topics; None for a URL.
        cacert: Only these authorities are trusted, if they are given.
    """

    target: Target
    kafka: KafkaSource | None
    style: OutputFormat | None
    quiet: bool
    strict: bool
    position_file: PositionFile | None
    headers: Mapping[str, str]
    cacert: Path | None
    insecure: bool

    def __post_init__(self) -> None:
        self._notes = StatusReporter(quiet=self.quiet, colours=select_colours(sys.stderr))
        self._follower: StreamFollower | None = None

    async def run(self) -> None:
        """Follow the target until it ends, standard output is closed, or SIGTERM arrives."""
        query = self.target.query
        position = (self.position_file.read() if self.position_file else None) or query.position
        output = OutputWriter(sys.stdout.fileno())
        tty = sys.stdout.isatty()
        style = self.style or (OutputFormat.PRETTY if tty else OutputFormat.JSON)
        async with self._open_source() as source:
            follower = StreamFollower(
                source,
                Printer(style, tty=tty, colours=select_colours(sys.stdout)),
                output,
                self._notes,
                position=position,
                remaining=query.count,
                strict=self.strict,
                explain_absence=None if self.target.scheme else self._explain_absence,
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
        if self.position_file is not None:
            self.position_file.write(follower.position)

    def _report_how_to_resume(self, position: str | None) -> None:
        if self.position_file is not None:
            self._notes.report(
                f"to go on here, run the same command; {self.position_file.path} has the position"
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
        if self.target.scheme:
            remote = await asyncio.to_thread(self._create_remote_source)
            async with contextlib.aclosing(remote) as source:
                yield source
            return
        from .in_process import open_in_process

        if self.quiet:
            logging.getLogger().addHandler(logging.NullHandler())
        # The gateway in this process reports what aiokafka does.
        logging.getLogger("aiokafka").addHandler(logging.NullHandler())
        outage_log = logging.getLogger("gateway.kafka.client.outages")
        outage_log.addFilter(self._should_log_outage)
        try:
            assert self.kafka is not None
            async with open_in_process(self.target, self.kafka) as source:
                yield source
        finally:
            outage_log.removeFilter(self._should_log_outage)

    def _create_remote_source(self) -> SseSource:
        tls: ssl.SSLContext | bool = True
        if self.target.scheme == "https":
            try:
                tls = create_trusting_context(self.cacert)
            except ValueError as exc:
                raise GatewayError(f"--cacert {exc}") from exc
            if self.insecure:
                tls.check_hostname = False
                tls.verify_mode = ssl.CERT_NONE
        return SseSource(self.target, headers=self.headers, tls=tls)

    async def _explain_absence(self) -> str:
        assert self.kafka is not None
        error = await find_connection_error(self.kafka, self.target.topics, "tail")
        return NO_KAFKA_MESSAGE if error is None else str(error)

    def _should_log_outage(self, record: logging.LogRecord) -> bool:
        """Return whether a log line says more than the error or response of the stream."""
        was_opened = self._follower is not None and self._follower.was_opened
        cause = getattr(record, "cause", None)
        return was_opened and cause not in (Cause.UNKNOWN_TOPIC, Cause.DENIED)
