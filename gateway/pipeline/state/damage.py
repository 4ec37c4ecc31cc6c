"""Tells of damaged state: Spark mends what it can, says so in its log, and its metrics stay 0.

The state package of the driver's JVM, which does the work itself on `local[*]`, logs into a file
too, a JSON object a line; it is read here, counted, and raised as an alert that names the file
and what was done. Executors elsewhere have logs of their own: there a damaged snapshot is found
by `gateway pipeline state NAME --verify`, and what ends a query is told by its failure.
"""

from __future__ import annotations

import json
import logging
import re
import tempfile
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

from gateway.pipeline.progress import alerts, counts
from gateway.telemetry import catalog

log = logging.getLogger(__name__)

_STATE_PACKAGE = "org.apache.spark.sql.execution.streaming.state"
_LOG_LAYOUT = (
    '{"level":"%p","logger":"%enc{%c}{JSON}","message":"%enc{%m}{JSON}",'
    '"cause":"%enc{%ex{short.message}}{JSON}"}%n'
)
_RUN_ID_PATTERN = re.compile(r"queryRunId=([0-9a-f-]{36})")
_STORE_PATTERN = re.compile(r"operatorId=(\d+), partitionId=(\d+), storeName=([^\s,\]]+)")
_SNAPSHOT_PATTERN = re.compile(r"Failed to load snapshot version (\d+)")
_FILE_PATTERN = re.compile(r"[a-z][a-z0-9+.-]*:/\S+?\.(?:zip|sst|log|changelog)")
ALERT_NAME = "state-damaged"
POLL_INTERVAL_S = 1.0  # s between two


class LoggedDamage(NamedTuple):
    """A line of the log about damage. run: the query's. file: as far as it is known."""

    run_id: str
    file: str
    description: str


def parse_line(line: str) -> LoggedDamage | None:
    """What a line tells; None: nothing of damage. Also of a snapshot that cannot be written,
    which Spark logs as a warning and goes on without, until restarts take forever."""
    try:
        told = json.loads(line)
    except ValueError:
        return None
    run, store = _RUN_ID_PATTERN.search(told["logger"]), _STORE_PATTERN.search(told["logger"])
    if run is None or store is None:
        return None
    message, cause = told["message"], told["cause"] or "no cause was told"
    operator, partition, name = store.groups()
    place = f"state/{operator}/{partition}" + ("" if name == "default" else f"/{name}")
    if snapshot := _SNAPSHOT_PATTERN.search(message):
        named = _FILE_PATTERN.search(cause)
        file = named[0] if named else f"{place}/{snapshot[1]}.zip"
        return LoggedDamage(run[1], file, f"{cause}; an older snapshot and its changelogs are used")
    if "Auto snapshot repair failed" in message:
        return LoggedDamage(run[1], place, f"{cause}; no snapshot can be loaded")
    if "error while performing maintenance" in message:
        if cause.rstrip().endswith(f"/{place} does not exist"):
            return None  # its first batch takes longer than the pause between two of these
        return LoggedDamage(run[1], place, f"{cause}; no snapshot is written, restarts get slower")
    return None


_jobs_by_run: dict[str, str] = {}  # by run id; a query may end before its damage is read of


def register_run(run_id: str, job: str) -> None:
    """A query of a job has this run id: what is logged of it is the job's."""
    _jobs_by_run[run_id] = job


class StateLogWatcher:
    """Reads the log of the state of a Spark JVM, all its queries, from now until `close`."""

    def __init__(self, spark: Any) -> None:
        self._directory = tempfile.TemporaryDirectory(prefix="gateway-state-")
        self._path = Path(self._directory.name, "state.jsonl")
        self._unreported: list[LoggedDamage] = []
        self._detach = _attach_appender(spark._jvm, str(self._path))
        self._file = self._path.open(encoding="utf-8")
        self._buffer = ""
        self._lock = threading.Lock()
        self._stop_event = threading.Event()
        self._thread = threading.Thread(
            target=self._poll_until_stopped, name="state-damage", daemon=True
        )
        self._thread.start()

    def poll(self) -> list[LoggedDamage]:
        """What was logged since the last look; counted and raised."""
        with self._lock:
            *lines, self._buffer = (self._buffer + self._file.read()).split("\n")
            found = [each for line in lines if (each := parse_line(line))]
            self._report(found)
        return found

    def close(self) -> None:
        """The session may be stopped already."""
        self._stop_event.set()
        self._thread.join()
        self.poll()
        try:
            self._detach()
        except Exception as error:  # the JVM is gone, and the appender with it
            log.debug("the log of the state is let go: %s", error)
        self._file.close()
        self._directory.cleanup()

    def _poll_until_stopped(self) -> None:
        while not self._stop_event.wait(POLL_INTERVAL_S):
            try:
                self.poll()
            except Exception:
                log.exception("the log of the state cannot be read")

    def _report(self, damage: Iterable[LoggedDamage]) -> None:
        untold = [*self._unreported, *damage]
        self._unreported = [each for each in untold if each.run_id not in _jobs_by_run][
            -1000:
        ]  # not begun yet
        for each in untold:
            if (job := _jobs_by_run.get(each.run_id)) is not None:
                report_damage(job, each.file, each.description)


def report_damage(job: str, file: str, description: str) -> None:
    """Count a damaged file, log it, and raise the alert."""
    counts.increment_counter(catalog.PIPELINE_STATE_DAMAGED, 1, job)
    log.error("damaged state of job %s: %s: %s", job, file, description)
    alerts.raise_alert(
        job, ALERT_NAME, f"{file}: {description}; look at the disk, and take a backup"
    )


def _attach_appender(jvm: Any, path: str) -> Callable[[], None]:
    """An appender of log4j 2 on the package's loggers, whatever the level of the others."""
    core = jvm.org.apache.logging.log4j.core
    level = jvm.org.apache.logging.log4j.Level
    context = jvm.org.apache.logging.log4j.LogManager.getContext(False)
    config = context.getConfiguration()
    layout = core.layout.PatternLayout.newBuilder().withPattern(_LOG_LAYOUT).build()
    appender = (
        core.appender.FileAppender.newBuilder()
        .withFileName(path)
        .setName(f"gateway-state-{Path(path).parent.name}")
        .setLayout(layout)
        .setImmediateFlush(True)
        .build()
    )
    appender.start()
    logger = config.getLoggers().get(_STATE_PACKAGE)
    if logger is None:
        logger = core.config.LoggerConfig(_STATE_PACKAGE, level.WARN, False)
        for other in config.getRootLogger().getAppenders().values():  # errors stay where they were
            logger.addAppender(other, level.ERROR, None)
        config.addLogger(_STATE_PACKAGE, logger)
    logger.addAppender(appender, level.WARN, None)
    context.updateLoggers()

    def detach() -> None:
        logger.removeAppender(appender.getName())
        appender.stop()

    return detach
