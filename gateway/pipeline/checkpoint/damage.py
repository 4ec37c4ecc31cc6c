"""Find damaged files of a checkpoint, and report state that Spark finds damaged while a query runs.

On a local disk, Hadoop keeps the CRC-32 of every 512 bytes beside each file. On other file systems
the formats have checksums of their own: a snapshot is a ZIP file with CRCs, a changelog has LZ4
blocks with hashes, and a table has RocksDB's blocks with checksums. Without a JVM, only the
structure of changelogs and tables is checked.

Spark mends some damage and only writes that to its log; its metrics stay 0. So the loggers of the
state package in the driver's JVM get an additional appender, which writes one JSON object per line
to a file. The file is read here, and each damage is counted and raised as an alert that names the
file and the remedy. With `local[*]` the driver does all of the work. Executors on other machines
have their own logs: there, `gateway pipeline state NAME --verify` finds a damaged snapshot, and
damage that ends a query is in the query's error.
"""

from __future__ import annotations

import errno
import json
import logging
import re
import struct
import tempfile
import threading
import zipfile
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from gateway.pipeline.reports import Reports
from gateway.pipeline.spark import internals

from .files import crc_path

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


class StateLogWatcher:
    """A reader of the log of all state in a Spark JVM, with a thread that polls it until `close`.

    The runner creates one for each session of Spark. `poll` may be called from any thread: a lock
    protects the file and the incomplete line.
    """

    def __init__(self, spark: Any, reports: Reports) -> None:
        self._reports = reports
        self._unreported: list[LoggedDamage] = []
        # Both have the file open before its directory is removed, so that nothing is left behind
        # even by a process that is killed.
        with tempfile.TemporaryDirectory(prefix="gateway-state-") as directory:
            path = Path(directory, "state.jsonl")
            self._detach = _attach_appender(internals.get_jvm(spark), str(path))
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

        A query loads its state before its run is registered.
        """
        pending = [*self._unreported, *damage]
        unreported = []
        for event in pending:
            if (job := self._reports.find_job(event.run_id)) is not None:
                self._reports.report_damage(job, event.file, event.description)
            else:
                unreported.append(event)
        self._unreported = unreported[-1000:]


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


ContentCheck: TypeAlias = Callable[[Path], str | None]
"""Returns what is wrong inside of a table or a changelog, or None."""

_TABLE_MAGIC = struct.pack("<Q", 0x88E241B785F4CFF7)  # RocksDB, block_based_table_builder.cc
# lz4-java, LZ4BlockOutputStream: magic, token, compressed size, size, hash.
_BLOCK_HEADER = struct.Struct("<8sBIII")


def describe_damage(path: Path, check_content: ContentCheck | None = None) -> str | None:
    """Return the damage of a local file and its checksums, or None.

    Raises:
        OSError: The file cannot be read now, such as with too many open files.
    """
    try:
        return _check_crc(path) or _check_format(path, check_content)
    except FileNotFoundError:
        return "is missing"
    except (OSError, zipfile.BadZipFile, ValueError, struct.error, zlib.error) as error:
        # Of a bad sector, and of a position in an archive that is before its start.
        if isinstance(error, OSError) and error.errno not in (errno.EIO, errno.EINVAL):
            raise
        return str(error) or type(error).__name__


def read_metadata(snapshot: Path) -> dict[str, Any]:
    """Return the `metadata` of a snapshot: its tables and its number of keys (-1: not counted)."""
    with zipfile.ZipFile(snapshot) as archive:
        _, text = archive.read("metadata").decode().split("\n", 1)  # the first line is a version
    metadata: dict[str, Any] = json.loads(text)
    return metadata


def create_content_check(spark: Any) -> ContentCheck:
    """Return a check by RocksDB's and LZ4's own readers, in the JVM of Spark."""
    from py4j.protocol import Py4JJavaError

    jvm = internals.get_jvm(spark)

    def check_table(path: str) -> None:
        options = jvm.org.rocksdb.Options()
        reader = jvm.org.rocksdb.SstFileReader(options)
        try:
            reader.open(path)
            reader.verifyChecksum()
        finally:
            reader.close()
            options.close()

    def check_changelog(path: str) -> None:
        file = jvm.java.io.FileInputStream(path)
        try:
            jvm.org.apache.commons.io.IOUtils.consume(jvm.net.jpountz.lz4.LZ4BlockInputStream(file))
        finally:
            file.close()

    def check_content(path: Path) -> str | None:
        try:
            (check_table if path.suffix == ".sst" else check_changelog)(str(path))
        except Py4JJavaError as error:
            text = str(error.java_exception.getMessage())
            if "Too many open files" in text:  # of the JVM
                raise OSError(text) from error
            return text
        return None

    jvm.org.rocksdb.RocksDB.loadLibrary()
    return check_content


def _check_crc(path: Path) -> str | None:
    """Verify a file by Hadoop's checksums, if they are beside it.

    The format is that of Hadoop's ChecksumFileSystem: `crc`, a zero byte, the number of bytes per
    checksum, then the CRC-32 of each such piece, all big-endian.
    """
    checksum_path = crc_path(path)
    if not checksum_path.exists():
        return None if path.exists() else "is missing"
    checksum_file = checksum_path.read_bytes()
    size = int.from_bytes(checksum_file[4:8], "big")
    if checksum_file[:4] != b"crc\0" or not size:
        return "has damaged checksums"
    data = memoryview(path.read_bytes())
    checksums = checksum_file[8:]
    if len(checksums) != 4 * -(-len(data) // size):
        return f"has {len(data)} bytes, which is not what was written"
    for i, start in enumerate(range(0, len(data), size)):
        checksum = zlib.crc32(data[start : start + size]).to_bytes(4, "big")
        if checksum != checksums[4 * i : 4 * i + 4]:
            return f"is damaged at byte {start} or after"
    return None


def _check_format(path: Path, check_content: ContentCheck | None) -> str | None:
    if path.suffix == ".zip":
        with zipfile.ZipFile(path) as archive:
            member = archive.testzip()
        return f"has a damaged member {member}" if member else None
    if path.suffix == ".changelog":
        return _check_changelog(path.read_bytes()) or (
            check_content(path) if check_content else None
        )
    if path.suffix == ".sst":
        with path.open("rb") as file:
            file.seek(max(path.stat().st_size - len(_TABLE_MAGIC), 0))
            if file.read() != _TABLE_MAGIC:
                return "is cut off"
        return check_content(path) if check_content else None
    return None


def _check_changelog(data: bytes) -> str | None:
    """Verify that a changelog is a sequence of LZ4 blocks that ends with an empty block.

    Spark wraps two streams around the file, and each writes an empty block when it is closed. So a
    complete changelog may end with two of them.
    """
    position, is_complete = 0, False
    while position < len(data):
        if position + _BLOCK_HEADER.size > len(data):
            return "is cut off"
        magic, _, compressed_size, size, _ = _BLOCK_HEADER.unpack_from(data, position)
        if magic != b"LZ4Block":
            return f"has no block at byte {position}"
        position, is_complete = position + _BLOCK_HEADER.size + compressed_size, size == 0
    return None if is_complete and position == len(data) else "is cut off"
