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

_PACKAGE = "org.apache.spark.sql.execution.streaming.state"
_PATTERN = (
    '{"level":"%p","logger":"%enc{%c}{JSON}","message":"%enc{%m}{JSON}",'
    '"cause":"%enc{%ex{short.message}}{JSON}"}%n'
)
_RUN = re.compile(r"queryRunId=([0-9a-f-]{36})")
_STORE = re.compile(r"operatorId=(\d+), partitionId=(\d+), storeName=([^\s,\]]+)")
_SNAPSHOT = re.compile(r"Failed to load snapshot version (\d+)")
_FILE = re.compile(r"[a-z][a-z0-9+.-]*:/\S+?\.(?:zip|sst|log|changelog)")
ALERT = "state-damaged"
LOOKS = 1.0  # s between two


class Sign(NamedTuple):
    """A line of the log about damage. run: the query's. file: as far as it is known."""

    run: str
    file: str
    what: str


def sign(line: str) -> Sign | None:
    """What a line tells; None: nothing of damage. Also of a snapshot that cannot be written,
    which Spark logs as a warning and goes on without, until restarts take forever."""
    try:
        told = json.loads(line)
    except ValueError:
        return None
    run, store = _RUN.search(told["logger"]), _STORE.search(told["logger"])
    if run is None or store is None:
        return None
    message, cause = told["message"], told["cause"] or "no cause was told"
    operator, partition, name = store.groups()
    place = f"state/{operator}/{partition}" + ("" if name == "default" else f"/{name}")
    if snapshot := _SNAPSHOT.search(message):
        named = _FILE.search(cause)
        file = named[0] if named else f"{place}/{snapshot[1]}.zip"
        return Sign(run[1], file, f"{cause}; an older snapshot and its changelogs are used")
    if "Auto snapshot repair failed" in message:
        return Sign(run[1], place, f"{cause}; no snapshot can be loaded")
    if "error while performing maintenance" in message:
        if cause.rstrip().endswith(f"/{place} does not exist"):
            return None  # its first batch takes longer than the pause between two of these
        return Sign(run[1], place, f"{cause}; no snapshot is written, restarts get slower")
    return None


_jobs: dict[str, str] = {}  # by run id; a query may end before its damage is read of


def began(run: str, job: str) -> None:
    """A query of a job has this run id: what is logged of it is the job's."""
    _jobs[run] = job


class Watch:
    """Reads the log of the state of a Spark JVM, all its queries, from now until `close`."""

    def __init__(self, spark: Any) -> None:
        self._directory = tempfile.TemporaryDirectory(prefix="gateway-state-")
        self._path = Path(self._directory.name, "state.jsonl")
        self._untold: list[Sign] = []
        self._undo = _attached(spark._jvm, str(self._path))
        self._file = self._path.open(encoding="utf-8")
        self._rest = ""
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="state-damage", daemon=True)
        self._thread.start()

    def look(self) -> list[Sign]:
        """What was logged since the last look; counted and raised."""
        with self._lock:
            *lines, self._rest = (self._rest + self._file.read()).split("\n")
            found = [each for line in lines if (each := sign(line))]
            self._tell(found)
        return found

    def close(self) -> None:
        """The session may be stopped already."""
        self._ended.set()
        self._thread.join()
        self.look()
        try:
            self._undo()
        except Exception as error:  # the JVM is gone, and the appender with it
            log.debug("the log of the state is let go: %s", error)
        self._file.close()
        self._directory.cleanup()

    def _run(self) -> None:
        while not self._ended.wait(LOOKS):
            try:
                self.look()
            except Exception:
                log.exception("the log of the state cannot be read")

    def _tell(self, found: Iterable[Sign]) -> None:
        untold = [*self._untold, *found]
        self._untold = [each for each in untold if each.run not in _jobs][-1000:]  # not begun yet
        for each in untold:
            if (job := _jobs.get(each.run)) is not None:
                tell(job, each.file, each.what)


def tell(job: str, file: str, what: str) -> None:
    """Count a damaged file, log it, and raise the alert."""
    counts.add(catalog.PIPELINE_STATE_DAMAGED, 1, job)
    log.error("damaged state of job %s: %s: %s", job, file, what)
    alerts.raise_(job, ALERT, f"{file}: {what}; look at the disk, and take a backup")


def _attached(jvm: Any, path: str) -> Callable[[], None]:
    """An appender of log4j 2 on the package's loggers, whatever the level of the others."""
    core = jvm.org.apache.logging.log4j.core
    level = jvm.org.apache.logging.log4j.Level
    context = jvm.org.apache.logging.log4j.LogManager.getContext(False)
    config = context.getConfiguration()
    layout = core.layout.PatternLayout.newBuilder().withPattern(_PATTERN).build()
    appender = (
        core.appender.FileAppender.newBuilder()
        .withFileName(path)
        .setName(f"gateway-state-{Path(path).parent.name}")
        .setLayout(layout)
        .setImmediateFlush(True)
        .build()
    )
    appender.start()
    logger = config.getLoggers().get(_PACKAGE)
    if logger is None:
        logger = core.config.LoggerConfig(_PACKAGE, level.WARN, False)
        for other in config.getRootLogger().getAppenders().values():  # errors stay where they were
            logger.addAppender(other, level.ERROR, None)
        config.addLogger(_PACKAGE, logger)
    logger.addAppender(appender, level.WARN, None)
    context.updateLoggers()

    def undo() -> None:
        logger.removeAppender(appender.getName())
        appender.stop()

    return undo
