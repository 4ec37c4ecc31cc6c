"""A Spark cluster of the wheel alone: a master and two workers, processes of this machine.

Its nodes have a Python of their own: with everything that this package depends on, and without
this package, which a job must bring.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import sysconfig
import urllib.request
import venv
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from support.ports import find_free_port
from support.requirements import require_tools
from support.spark_jvm import LEAN_JVM_OPTIONS
from support.waiting import block_until

START_TIMEOUT_S = 120.0  # s


@dataclass
class SparkCluster:
    """directory: of its logs, its workers' directories and the nodes' Python."""

    directory: Path
    worker_count: int = 2
    _processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"spark://127.0.0.1:{self._master_port}"

    @property
    def python_path(self) -> Path:
        return self.directory / "python" / "bin" / "python"

    def start(self) -> None:
        create_node_python(self.directory / "python")
        self._master_port, page = find_free_port(), find_free_port()
        self._status_url = f"http://127.0.0.1:{page}/json/"
        master = "org.apache.spark.deploy.master.Master"
        self._start_node("master", master, "--port", self._master_port, "--webui-port", page)
        block_until(self._fetch_state, "the master", START_TIMEOUT_S)
        for each in range(self.worker_count):
            work = self.directory / f"worker-{each}"
            how = ("--cores", 1, "--memory", "2g", "--port", 0, "--webui-port", 0)
            kind = "org.apache.spark.deploy.worker.Worker"
            self._start_node(work.name, kind, *how, "--work-dir", work, self.url)
        block_until(
            lambda: (self._fetch_state() or {}).get("aliveworkers") == self.worker_count,
            "the workers",
            START_TIMEOUT_S,
        )

    def close(self) -> None:
        for process in reversed(self._processes):  # each with its executors
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
        for process in self._processes:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()

    def list_sent_archives(self) -> list[list[str]]:
        """For each worker, the names of archives of this package that its executors were sent."""
        works = [self.directory / f"worker-{each}" for each in range(self.worker_count)]
        return [sorted({each.name for each in work.rglob("gateway-*.zip")}) for work in works]

    def _start_node(self, name: str, *arguments: object) -> None:
        import pyspark  # the first tier has none

        program = Path(pyspark.__file__).parent / "bin" / "spark-class"
        variables = {
            **{k: v for k, v in os.environ.items() if not k.startswith(("SPARK_", "PYSPARK_"))},
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": " ".join(LEAN_JVM_OPTIONS),
            "SPARK_LOCAL_DIRS": str(self.directory / "local"),
        }
        kind, *options = map(str, arguments)
        with (self.directory / f"{name}.log").open("wb") as log:
            self._processes.append(
                subprocess.Popen(
                    [program, kind, "--host", "127.0.0.1", *options],
                    stdout=log,
                    stderr=log,
                    cwd=self.directory,  # not where this package could be imported from
                    env=variables,
                    start_new_session=True,
                )
            )

    def _fetch_state(self) -> dict[str, Any] | None:
        with (
            suppress(OSError, ValueError),
            urllib.request.urlopen(self._status_url, timeout=5) as answer,
        ):
            found: dict[str, Any] = json.load(answer)
            return found
        return None


@contextmanager
def running_spark_cluster(directory: Path) -> Iterator[SparkCluster]:
    """Started, and ended with the block."""
    require_tools("java17")
    made = SparkCluster(directory)
    try:
        made.start()
        yield made
    finally:
        made.close()


def create_node_python(directory: Path) -> None:
    """Sees the packages of this Python, but nothing that is installed as editable: a path in a
    .pth file is one to import from, and the .pth files there are not read."""
    venv.create(directory, symlinks=True, with_pip=False)
    inside = sysconfig.get_path("purelib", vars={"base": str(directory)})
    Path(inside, "packages.pth").write_text(sysconfig.get_path("purelib") + "\n")
    code = "import pyspark, confluent_kafka, importlib.util as u; print(u.find_spec('gateway'))"
    said = subprocess.run(
        [directory / "bin" / "python", "-c", code], cwd=directory, capture_output=True, text=True
    )
    assert said.stdout == "None\n", said
    assert sys.executable != str(directory / "bin" / "python")
