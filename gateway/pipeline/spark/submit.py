"""Run jobs on a cluster: spark-submit, with the Kafka connector and this package.

`gateway pipeline submit` calls this module. spark-submit is a JVM that starts the Python process of
the driver. A signal to spark-submit would end Spark in the middle of a batch, and the driver would
not receive it. So this process waits for spark-submit, and passes signals on to the driver.
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
from gateway.extras import format_install_command

from . import java
from .session import build_session_conf

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
    java.find_java()
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
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise PipelineError(f"Spark is not installed; {format_install_command('pipeline')}")
    return Path(spec.origin).parent / "bin" / "spark-submit"
