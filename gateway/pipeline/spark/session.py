"""Start Spark: a session that jobs share, or spark-submit on a cluster.

The settings that all jobs need are `BASE_CONF`. A job's own settings (shuffle partitions, its state
store) belong to a session of that job, which shares the Spark context: see `create_job_session`.
Each setting for state has its reason. Those that Spark stores in the checkpoint with the first
batch (the number of partitions, the format of joins) are marked as frozen: a later change is
ignored.

spark-submit is a JVM that starts the Python process of the driver. A signal to spark-submit would
end Spark in the middle of a batch, and the driver would not receive it. So the process of
`run_command` waits for spark-submit, and passes signals on to the driver.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from gateway.config.sections.job import Job, Spark, State
from gateway.config.sections.pipelines import Join
from gateway.errors import PipelineError
from gateway.pipeline.job_settings import local_path

from . import internals
from .spark_home import (
    build_archive,
    fetch_connector_jars,
    find_java,
    find_pyspark,
    spark_home_for_workers,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_JVM_OPTIONS = ("-XX:+UseG1GC",)

_JVM_END_TIMEOUT_S = 10.0  # from the end of its connections to that of its process
_OUT_OF_MEMORY_STATUS = 52  # Spark's SparkExitCode.OOM

BASE_CONF: Mapping[str, str] = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",  # windows must not depend on the machine's zone
    "spark.sql.adaptive.enabled": "false",  # streams ignore it, and log that at each start
    "spark.locality.wait": "0s",  # a short batch must not wait 3 s for the executor of the last one
    # State is on disk, not in the heap.
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    # A batch uploads what it changed; otherwise it uploads a snapshot of everything.
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    "spark.sql.execution.pyspark.udf.faulthandler.enabled": "true",
}

# To rename a file, Spark's default manager starts several `readlink` processes. With the manager
# below, a warm batch of a job without state took 174 ms instead of 259, and one of a window count
# 290 ms instead of 398 (two busy cores). It is for local disks only, because on other file systems
# its rename may refuse to replace a file.
_LOCAL_CHECKPOINT_CONF: Mapping[str, str] = {
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing."
        "FileSystemBasedCheckpointFileManager"
    )
}


def build_checkpoint_conf(checkpoints: str) -> Mapping[str, str]:
    return _LOCAL_CHECKPOINT_CONF if local_path(checkpoints) is not None else {}


def is_submitted() -> bool:
    """Return whether spark-submit started this process, so that the JVM already runs."""
    return "PYSPARK_GATEWAY_PORT" in os.environ  # the port of the JVM, set by spark-submit


def create_session(
    spark: Spark, name: str = "gateway", *, jvm_options: Sequence[str] = _JVM_OPTIONS
) -> SparkSession:
    """Create a Spark session by the settings, in this process or on a cluster.

    If spark-submit started this process, its session is used, with the settings that can still be
    changed.
    """
    find_pyspark()
    internals.verify_python()
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder: Any = SparkSession.builder.appName(name)
    jars = None
    with ignore_sigterm_in_children(), spark_home_for_workers(spark):
        if not is_submitted():
            find_java()
            jars = fetch_connector_jars()
            if spark.master.startswith("local"):
                # Spark would use the address of the machine's name, which may not be this
                # machine's.
                os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        conf = build_session_conf(spark, jars=jars, jvm_options=jvm_options)
        for key, value in conf.items():
            builder = builder.config(key, value)
        session: SparkSession = builder.getOrCreate()
    if not is_submitted() and not spark.master.startswith("local"):
        session.sparkContext.addPyFile(str(build_archive()))  # like spark-submit's --py-files
    # This access creates Spark's manager of queries, and with it the coordinator of state stores.
    # Without the coordinator, state cannot be read or rescaled before the first query has run.
    _ = session.streams
    internals.verify_java(session)
    session.sparkContext.setLogLevel(os.environ.get("GATEWAY_SPARK_LOG", "ERROR"))
    return session


def describe_jvm_end(error: Exception) -> str | None:
    """Return how Spark's JVM has ended, in one line; None if it has not, as far as is known."""
    from py4j.protocol import Py4JError, Py4JJavaError

    gateway = internals.get_gateway()
    if gateway is None:
        has_begun = isinstance(error, Py4JError) or "[JAVA_GATEWAY_EXITED]" in str(error)
        return "Spark's JVM ended while it started; see its output above" if has_begun else None
    if isinstance(error, Py4JJavaError) or not isinstance(error, Py4JError | ConnectionError):
        return None
    if is_submitted():
        return "Spark's JVM does not answer any more; the output of spark-submit has the reason"
    try:
        return format_jvm_end(gateway.proc.wait(_JVM_END_TIMEOUT_S))
    except subprocess.TimeoutExpired:
        return None


def format_jvm_end(status: int) -> str:
    """Return the line for a JVM that ended by an exit code, or a negative signal number."""
    ended = f"exit code {status}" if status >= 0 else f"signal {-status}"
    hints = {
        -signal.SIGKILL: "the machine may have had no memory left: lower spark.memory",
        _OUT_OF_MEMORY_STATUS: "it had too little memory: raise spark.memory, which must hold 500 "
        "of the largest records of each partition that is read at a time",
    }
    hint = hints.get(status, "its output above has the reason")
    return f"Spark's JVM has ended with {ended}; {hint}. The next start goes on from the checkpoint"


def build_session_conf(
    spark: Spark,
    *,
    jars: Sequence[Path] | None,
    jvm_options: Sequence[str] = _JVM_OPTIONS,
) -> dict[str, str]:
    """Return all settings of a new session; those of `spark.conf` override ours.

    Args:
        jars: The jars of the Kafka connector, or None if spark-submit started the JVM: its command
            line then has the settings that a JVM is started with.
    """
    if jars is None:
        return {**BASE_CONF, **spark.conf}
    memory = f"{spark.memory // 1024**2}m"
    startup_conf = {
        "spark.master": spark.master,
        "spark.driver.memory": memory,
        "spark.executor.memory": memory,
        "spark.driver.extraJavaOptions": " ".join(jvm_options),
        "spark.jars": ",".join(map(str, jars)),
    }
    return {**BASE_CONF, **startup_conf, **spark.conf}


def create_job_session(spark: SparkSession, conf: Mapping[str, str]) -> SparkSession:
    """Create a session for one job, which shares the Spark context of another session.

    Only settings of Spark SQL are used: the others belong to the context, and cannot differ between
    jobs.
    """
    session = spark.newSession()
    for key, value in {**BASE_CONF, **conf}.items():
        if key.startswith("spark.sql."):
            session.conf.set(key, value)
    return session


_PROGRAM_CONF = {
    name: BASE_CONF[name]
    for name in (
        "spark.sql.session.timeZone",
        "spark.sql.streaming.stateStore.providerClass",
        "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled",
    )
}
_CONNECTOR_CLASS = "org.apache.spark.sql.kafka010.KafkaSourceProvider"


def jars() -> str:
    """Return the jars of Spark's Kafka connector, as `spark-submit --jars` and `spark.jars` do.

    They are downloaded to the user's cache once, and verified by their checksums. `--packages`
    cannot resolve all of them.

    Raises:
        PipelineError: A jar cannot be downloaded, or is another one.
    """
    return ",".join(map(str, fetch_connector_jars()))


def session_conf() -> dict[str, Any]:
    """Return the settings that a session of a program needs.

        spark = SparkSession.builder.config(map=session_conf()).getOrCreate()

    Under spark-submit, the JVM already runs: there `--jars` must name the `jars`.

    Raises:
        PipelineError: As of `jars`.
    """
    return _PROGRAM_CONF | ({} if is_submitted() else {"spark.jars": jars()})


def prepare_program_session(spark: SparkSession) -> None:
    """Check that a session that a program made can be used, and give its executors this package.

    Raises:
        PipelineError: A setting, a jar or a library is missing; the message has the line to add.
    """
    remedy = "SparkSession.builder.config(map=gateway.pipeline.session_conf())"
    if not internals.has_jvm(spark):
        raise PipelineError(f"Spark Connect has no JVM here; make a classic session by {remedy}")
    internals.verify_python()
    if internals.load_class(spark, _CONNECTOR_CLASS) is None:
        problem = "the session has no jars of Spark's Kafka connector"
        if is_submitted():
            command = "python -c 'import gateway.pipeline as p; print(p.jars())'"
            raise PipelineError(f'{problem}; write spark-submit --jars "$({command})"')
        # A JVM outlasts spark.stop(), and gets jars only as it starts.
        raise PipelineError(f"{problem}; restart this process (or kernel), and make it by {remedy}")
    unset = {name: v for name, v in _PROGRAM_CONF.items() if spark.conf.get(name, None) != v}
    if unset:
        lines = "".join(f'\n    spark.conf.set("{name}", "{v}")' for name, v in unset.items())
        problem = f"the session has other settings than state and times need; make it by {remedy}"
        raise PipelineError(f"{problem}, or add before the first read_topic:{lines}")
    internals.verify_java(spark)
    context = spark.sparkContext
    if (context.master or "").startswith("local"):
        _verify_worker_python(str(context.pythonExec))
    else:
        context.addPyFile(str(build_archive()))  # like spark-submit's --py-files


def _verify_worker_python(command: str) -> None:
    """Raise PipelineError if local workers run Python outside of this process's environment.

    Spark runs `python3` unless PYSPARK_PYTHON is set, which may lack this package. Spark itself
    would only say that a worker failed to connect back. A Python that is named is not checked.
    """
    path = shutil.which(command)
    is_same = path is not None and Path(path).parent == Path(sys.executable).parent
    if command == "python3" and not is_same:
        raise PipelineError(
            f"Spark's workers would run {path or command}, which is not this Python; activate its "
            'environment, or add os.environ["PYSPARK_PYTHON"] = sys.executable before the session '
            "is made"
        )


_children = threading.local()  # `ignore_sigterm`: whether those that this thread starts do so


def _ignore_sigterm_if_wanted() -> None:
    if getattr(_children, "ignore_sigterm", False):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)


os.register_at_fork(after_in_child=_ignore_sigterm_if_wanted)


@contextmanager
def ignore_sigterm_in_children() -> Iterator[None]:
    """Let the processes that this thread starts in the context ignore SIGTERM.

    systemd (`KillMode=control-group`, the default), `timeout` and Kubernetes' `preStop` scripts
    send SIGTERM to all processes of a service. If Spark's JVM ended before its driver, each call of
    the driver would fail, and the present batch could not end. A process inherits that a signal is
    ignored, also through `exec` (POSIX), and Java then installs no handler for it. The JVM ends
    with the driver in any case, because it reads the pipe that the driver holds.

    The signal is ignored in the child, between `fork` and `exec`. To ignore it in the driver for a
    moment would lose a signal of this moment: blocking it does not help, because the kernel gives
    it to any thread that does not block it.

    This is so for `os.fork`, and for `subprocess` if `preexec_fn` is given, as PySpark does: Python
    calls functions that are registered for a fork only in such children.
    """
    _children.ignore_sigterm = True
    try:
        yield
    finally:
        _children.ignore_sigterm = False


_STORE_PREFIX = "spark.sql.streaming.stateStore."
_ROCKSDB_PREFIX = f"{_STORE_PREFIX}rocksdb."


class StateProfile(NamedTuple):
    """The defaults that `state.profile` of a job selects.

    Attributes:
        snapshot_after: How many batches are written as changelogs before the next snapshot.
        maintenance_s: The time between two uploads of snapshots.
        cache_mib: The size of one store's block cache, if memory is not limited.
        memory_mib: The memory of all stores of an executor together; None for no limit.
    """

    snapshot_after: int
    maintenance_s: int
    cache_mib: int
    memory_mib: int | None
    counts_rows: bool


PROFILES = {
    "small": StateProfile(
        snapshot_after=10, maintenance_s=30, cache_mib=8, memory_mib=None, counts_rows=True
    ),
    "large": StateProfile(
        snapshot_after=20, maintenance_s=60, cache_mib=64, memory_mib=2048, counts_rows=False
    ),
    "latency": StateProfile(
        snapshot_after=50, maintenance_s=60, cache_mib=32, memory_mib=None, counts_rows=False
    ),
}


def build_state_conf(state: State, *, is_join: bool = False) -> dict[str, str]:
    """Return the settings for the state of a job, besides those of `BASE_CONF`."""
    profile = PROFILES[state.profile]
    conf = {
        # One store and one task each; frozen, see `gateway pipeline rescale`.
        "spark.sql.shuffle.partitions": str(state.partitions),
        # The most batches that a restart replays; snapshots are uploaded between batches.
        f"{_STORE_PREFIX}minDeltasForSnapshot": str(state.snapshot_after or profile.snapshot_after),
        # How often snapshots are uploaded and old versions deleted.
        f"{_STORE_PREFIX}maintenanceInterval": f"{profile.maintenance_s}s",
        # How many batches keep their changelogs, snapshots and offsets: a repair goes back so far.
        "spark.sql.streaming.minBatchesToRetain": str(state.retain),
        # Instead of a damaged snapshot an older one and its changelogs are used.
        f"{_STORE_PREFIX}autoSnapshotRepair.enabled": "true",
        # 2 doubles the number of files with checksums of what has checksums already: ZIP, LZ4 and
        # RocksDB's blocks; tables get none from it.
        f"{_STORE_PREFIX}checkpointFormatVersion": "1",
        # 2 stores per partition instead of 8; frozen.
        "spark.sql.streaming.join.stateFormatVersion": "3",
        # An exact count costs a lookup for every write: joins did 36,100 records/s with it and
        # 48,700 without; `gateway pipeline state` counts on demand.
        f"{_ROCKSDB_PREFIX}trackTotalNumberOfRows": str(
            profile.counts_rows and not is_join
        ).lower(),
    }
    limit = profile.memory_mib if state.memory is None else state.memory // 1024**2
    if limit is None:  # memory grows with the keys
        return conf | {
            f"{_ROCKSDB_PREFIX}boundedMemoryUsage": "false",
            # The cache of one store's blocks, which are then not read from disk.
            f"{_ROCKSDB_PREFIX}blockCacheSizeMB": str(profile.cache_mib),
        }
    return conf | {
        # All stores of an executor share one limit; that of the first job counts.
        f"{_ROCKSDB_PREFIX}boundedMemoryUsage": "true",
        # Caches and write buffers together, outside of the heap.
        f"{_ROCKSDB_PREFIX}maxMemoryUsageMB": str(limit),
    }


def build_job_conf(job: Job) -> dict[str, str]:
    return build_state_conf(job.state, is_join=isinstance(job, Join))


DRIVER_PID_FILE_VARIABLE = "GATEWAY_DRIVER_PID_FILE"
"""The environment variable with the path of a file, to which the driver writes its process id.

`gateway/cli/pipeline/driver.py` is the driver.
"""

# Settings for which spark-submit has an option of the command line.
_DEDICATED_OPTIONS = {"spark.master", "spark.jars", "spark.driver.memory", "spark.executor.memory"}


def build_command(
    spark: Spark, arguments: Sequence[str], *, driver: Path, jars: Sequence[Path], package: Path
) -> list[str]:
    all_conf = build_session_conf(spark, jars=jars)
    conf = {name: value for name, value in all_conf.items() if name not in _DEDICATED_OPTIONS}
    memory = f"{spark.memory // 1024**2}m"
    return [
        str(_find_spark_submit()),
        *("--master", all_conf["spark.master"], "--name", "gateway"),
        *("--driver-memory", memory, "--executor-memory", memory),
        *("--jars", ",".join(map(str, jars)), "--py-files", str(package)),
        *(word for name, value in conf.items() for word in ("--conf", f"{name}={value}")),
        *(str(driver), *arguments),
    ]


def run_command(command: Sequence[str], *, master: str) -> int:
    """Run spark-submit and return its exit code: 128 plus the signal if a signal ended it.

    SIGTERM and SIGINT are passed on to the driver, which ends after the current batch. It can only
    be called in the main thread, because it installs signal handlers.
    """
    find_java()
    sys.stdout.flush()
    with tempfile.TemporaryDirectory(prefix="gateway-submit-") as directory:
        pid_file = Path(directory, "driver")
        variables = build_environment(os.environ, master=master) | {
            DRIVER_PID_FILE_VARIABLE: str(pid_file)
        }
        # The handlers must be in place before the process starts, so the list is empty at first.
        processes: list[subprocess.Popen[bytes]] = []
        with _forward_signals(processes, pid_file):
            # The new session keeps a terminal from sending its ^C to spark-submit and the driver.
            processes.append(subprocess.Popen(command, env=variables, start_new_session=True))
            status = processes[0].wait()
    return 128 - status if status < 0 else status


def build_environment(variables: Mapping[str, str], *, master: str) -> dict[str, str]:
    """Return the environment of spark-submit: this process's, with its Python as the default."""
    defaults = {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
    if master.startswith("local"):
        # Spark would use the address of the machine's name, which may not be this machine's.
        defaults["SPARK_LOCAL_IP"] = "127.0.0.1"
    return {**defaults, **variables}


@contextmanager
def _forward_signals(
    processes: Sequence[subprocess.Popen[bytes]], pid_file: Path
) -> Iterator[None]:
    """Pass SIGTERM and SIGINT on to the driver, or to spark-submit until there is a driver."""

    def forward_signal(number: int, _: object) -> None:
        for process in processes:
            if process.returncode is None:
                with suppress(ProcessLookupError):
                    os.kill(_read_driver_pid(pid_file) or process.pid, number)

    numbers = (signal.SIGTERM, signal.SIGINT)
    previous_handlers = {number: signal.signal(number, forward_signal) for number in numbers}
    try:
        yield
    finally:
        for number, handler in previous_handlers.items():
            signal.signal(number, handler)


def _read_driver_pid(pid_file: Path) -> int | None:
    with suppress(OSError, ValueError):
        return int(pid_file.read_text())
    return None


def _find_spark_submit() -> Path:
    """Return the path of spark-submit: that of SPARK_HOME, or else of pyspark's wheel."""
    if home := os.environ.get("SPARK_HOME"):
        return Path(home) / "bin" / "spark-submit"
    return find_pyspark() / "bin" / "spark-submit"
