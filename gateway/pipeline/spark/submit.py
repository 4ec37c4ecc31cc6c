"""The command that runs jobs on a cluster: spark-submit, with the connector and this package.

spark-submit is a JVM that starts the driver's Python. A signal to it would end Spark inside a
batch, and the driver would hear nothing of it; so we stay, and pass signals on to the driver.
"""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from gateway.config.sections.job import Spark
from gateway.errors import PipelineError

from . import java
from .session import build_session_conf

DRIVER_PID_FILE_VARIABLE = "GATEWAY_DRIVER_PID_FILE"
"""The environment's name of a file: the driver writes its process id there."""

_DEDICATED_OPTIONS = {"spark.master", "spark.jars", "spark.driver.memory", "spark.executor.memory"}


def build_command(
    spark: Spark, arguments: Sequence[str], *, driver: Path, jars: Sequence[Path], package: Path
) -> list[str]:
    """The line. driver: the program, and its arguments."""
    made = build_session_conf(spark, jars=jars)
    conf = {name: value for name, value in made.items() if name not in _DEDICATED_OPTIONS}
    memory = f"{spark.memory // 1024**2}m"
    return [
        str(_find_spark_submit()),
        *("--master", made["spark.master"], "--name", "gateway"),
        *("--driver-memory", memory, "--executor-memory", memory),
        *("--jars", ",".join(map(str, jars)), "--py-files", str(package)),
        *(word for name, value in conf.items() for word in ("--conf", f"{name}={value}")),
        *(str(driver), *arguments),
    ]


def run_command(command: Sequence[str], *, master: str) -> int:
    """Until it ends: its exit code. SIGTERM and SIGINT have the driver end after its batch.

    Raises PipelineError: no Java.
    """
    java.find_java()
    sys.stdout.flush()
    with tempfile.TemporaryDirectory(prefix="gateway-submit-") as directory:
        file = Path(directory, "driver")
        variables = build_environment(os.environ, master=master) | {
            DRIVER_PID_FILE_VARIABLE: str(file)
        }
        started: list[subprocess.Popen[bytes]] = []
        with _forward_signals(started, file):
            # Of its own, so that ^C of a terminal comes to us alone.
            started.append(subprocess.Popen(command, env=variables, start_new_session=True))
            status = started[0].wait()
    return 128 - status if status < 0 else status


def build_environment(variables: Mapping[str, str], *, master: str) -> dict[str, str]:
    """What Spark starts with. PYSPARK_PYTHON is the nodes' Python; the driver's is ours."""
    ours = {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
    if master.startswith("local"):  # the machine's name may be an address elsewhere
        ours["SPARK_LOCAL_IP"] = "127.0.0.1"
    return {**ours, **variables}


@contextmanager
def _forward_signals(
    processes: Sequence[subprocess.Popen[bytes]], pid_file: Path
) -> Iterator[None]:
    """SIGTERM and SIGINT: to the driver; to spark-submit while there is no driver yet."""

    def forward_signal(number: int, _: object) -> None:
        for process in processes:
            if process.returncode is None:
                with suppress(ProcessLookupError):
                    os.kill(_read_driver_pid(pid_file) or process.pid, number)

    numbers = (signal.SIGTERM, signal.SIGINT)
    before = {number: signal.signal(number, forward_signal) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _read_driver_pid(pid_file: Path) -> int | None:
    """Its process id, once it runs."""
    with suppress(OSError, ValueError):
        return int(pid_file.read_text())
    return None


def _find_spark_submit() -> Path:
    if home := os.environ.get("SPARK_HOME"):
        return Path(home) / "bin" / "spark-submit"
    found = importlib.util.find_spec("pyspark")
    if found is None or found.origin is None:
        raise PipelineError("Spark is not installed; pip install 'gateway[pipeline]'")
    return Path(found.origin).parent / "bin" / "spark-submit"
