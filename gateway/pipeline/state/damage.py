"""Report state that Spark found damaged while a query runs.

Spark mends some damage and only writes that to its log; its metrics stay 0. So the loggers of the
state package in the driver's JVM get an additional appender, which writes one JSON object per line
to a file. The file is read here, and each damage is counted and raised as an alert that names the
file and the remedy. With `local[*]` the driver does all of the work. Executors on other machines
have their own logs: there, `gateway pipeline state NAME --verify` finds a damaged snapshot, and
damage that ends a query is in the query's error.
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
POLL_INTERVAL_S = 1.0


class LoggedDamage(NamedTuple):
    """Damage in the log; `file` is the store's directory if Spark does not name a file."""

    run_id: str
    file: str
    description: str


def parse_line(line: str) -> LoggedDamage | None:
    """Return the damage that a line of the log reports, or None if it reports none.

    A snapshot that cannot be written counts as damage, too. Spark logs that as a warning and goes
    on without the snapshot, so that restarts take longer and longer.
    """
    try:
        event = json.loads(line)
    except ValueError:
        return None
    run, store = _RUN_ID_PATTERN.search(event["logger"]), _STORE_PATTERN.search(event["logger"])
    if run is None or store is None:
        return None
    message, cause = event["message"], event["cause"] or "no cause was logged"
    operator, partition, name = store.groups()
    place = f"state/{operator}/{partition}" + ("" if name == "default" else f"/{name}")
    if snapshot := _SNAPSHOT_PATTERN.search(message):
        named_file = _FILE_PATTERN.search(cause)
        file = named_file[0] if named_file else f"{place}/{snapshot[1]}.zip"
        return LoggedDamage(run[1], file, f"{cause}; an older snapshot and its changelogs are used")
    if "Auto snapshot repair failed" in message:
        return LoggedDamage(run[1], place, f"{cause}; no snapshot can be loaded")
    if "error while performing maintenance" in message:
        if cause.rstrip().endswith(f"/{place} does not exist"):
            return None  # normal: the store's first batch takes longer than the interval
        return LoggedDamage(run[1], place, f"{cause}; no snapshot is written, restarts get slower")
    return None


# How many runs of each job are known. A query may end, and its job start again, before the damage
# of the ended run is read from the log.
RETAINED_RUNS = 100
_jobs_by_run: dict[str, str] = {}  # by run id, the oldest run first


def register_run(run_id: str, job: str) -> None:
    """Attribute the damage that is logged for a run of a query to a job.

    Only the latest `RETAINED_RUNS` runs of the job are kept. Runs of other jobs are not removed: a
    job may run for months while another one starts again and again.
    """
    _jobs_by_run[run_id] = job
    runs = [run for run, known_job in _jobs_by_run.items() if known_job == job]
    for run in runs[:-RETAINED_RUNS]:
        del _jobs_by_run[run]


def find_job(run_id: str) -> str | None:
    """Return the job of a run, or None if the run is unknown or was too many runs ago."""
    return _jobs_by_run.get(run_id)


class StateLogWatcher:
    """A reader of the log of all state in a Spark JVM, with a thread that polls it until `close`.

    The runner creates one for each session of Spark. `poll` may be called from any thread: a lock
    protects the file and the incomplete line.
    """

    def __init__(self, spark: Any) -> None:
        self._unreported: list[LoggedDamage] = []
        # Both have the file open before its directory is removed, so that nothing is left behind
        # even by a process that is killed.
        with tempfile.TemporaryDirectory(prefix="gateway-state-") as directory:
            path = Path(directory, "state.jsonl")
            self._detach = _attach_appender(spark._jvm, str(path))
            self._file = path.open(encoding="utf-8")
        self._buffer = ""
        self._lock = threading.Lock()
        self._stop_event = threading.Event()
        self._thread = threading.Thread(
            target=self._poll_until_stopped, name="state-damage", daemon=True
        )
        self._thread.start()

    def poll(self) -> list[LoggedDamage]:
        """Report and return the damage that was logged since the last call."""
        with self._lock:
            # The last part is a line that log4j has not finished, or empty.
            *lines, self._buffer = (self._buffer + self._file.read()).split("\n")
            logged = [damage for line in lines if (damage := parse_line(line))]
            self._report(logged)
        return logged

    def close(self) -> None:
        """Report the last lines, and stop. The session may have been stopped already."""
        self._stop_event.set()
        self._thread.join()
        self.poll()
        try:
            self._detach()
        except Exception as error:  # the JVM is gone, and the appender with it
            log.debug("the appender for the log of the state cannot be removed: %s", error)
        self._file.close()

    def _poll_until_stopped(self) -> None:
        while not self._stop_event.wait(POLL_INTERVAL_S):
            try:
                self.poll()
            except Exception:
                log.exception("the log of the state cannot be read")

    def _report(self, damage: Iterable[LoggedDamage]) -> None:
        """Report damage of known runs, and keep at most 1,000 of runs that are not known yet.

        A query loads its state before `register_run` is called for it.
        """
        pending = [*self._unreported, *damage]
        unreported = []
        for event in pending:
            if (job := find_job(event.run_id)) is not None:
                report_damage(job, event.file, event.description)
            else:
                unreported.append(event)
        self._unreported = unreported[-1000:]


def report_damage(job: str, file: str, description: str) -> None:
    counts.increment_counter(catalog.PIPELINE_STATE_DAMAGED, 1, job)
    log.error("damaged state of job %s: %s: %s", job, file, description)
    alerts.raise_alert(job, ALERT_NAME, f"{file}: {description}; check the disk, and take a backup")


def _attach_appender(jvm: Any, path: str) -> Callable[[], None]:
    """Add an appender of log4j 2 to the loggers of Spark's state package; return its remover."""
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
        # The new logger does not pass its events on to the root logger (additivity is off), so that
        # warnings do not appear on the console. Errors still go where they went before.
        for other in config.getRootLogger().getAppenders().values():
            logger.addAppender(other, level.ERROR, None)
        config.addLogger(_STATE_PACKAGE, logger)
    logger.addAppender(appender, level.WARN, None)
    context.updateLoggers()

    def detach() -> None:
        logger.removeAppender(appender.getName())
        appender.stop()

    return detach
