"""A real schema registry: Apicurio 2.6.13, whose API is Confluent's under `/apis/ccompat/v7`.

Fetched once for the machine with mvn (142 MB) and kept in the cache; in memory, 4 s to start.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import tarfile
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from support.ports import find_free_port
from support.requirements import skip_or_fail

ARTIFACT_COORDINATES = "io.apicurio:apicurio-registry-app:2.6.13.Final:tar.gz:all"
COPY_GOAL = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy"
START_TIMEOUT_S = 120.0  # s


@contextmanager
def running_apicurio() -> Iterator[str]:
    """Its base URL. It needs a Java 17, and Maven brings one."""
    room = _ensure_fetched()
    port = find_free_port()
    runner = next(room.glob("*-runner.jar"))
    options = [f"-Dquarkus.http.port={port}", "-Dquarkus.http.host=127.0.0.1"]
    with tempfile.TemporaryFile("a+b") as log:
        process = subprocess.Popen(
            ["java", "-Xmx512m", "-XX:TieredStopAtLevel=1", *options, "-jar", str(runner)],
            cwd=room, stdout=log, stderr=subprocess.STDOUT,
        )  # fmt: skip
        try:
            url = f"http://127.0.0.1:{port}/apis/ccompat/v7"
            _wait_until_ready(process, f"{url}/subjects")
            yield url
        finally:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _wait_until_ready(process: subprocess.Popen[bytes], url: str) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    while True:
        try:
            with opener.open(url, timeout=5):
                return
        except OSError as exc:
            if process.poll() is not None or time.monotonic() > deadline:
                raise TimeoutError(f"Apicurio did not start: {exc}") from None
        time.sleep(0.1)


def _ensure_fetched() -> Path:
    root = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "gateway"
    room = root / "apicurio-2.6.13"
    root.mkdir(parents=True, exist_ok=True)
    with (root / "apicurio.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not room.is_dir():
            with tempfile.TemporaryDirectory(dir=root, prefix="apicurio-") as name:
                staging = Path(name)
                _fetch_archive(staging)
                (staging / "app").rename(room)
    return room


def _fetch_archive(staging: Path) -> None:
    done = subprocess.run(
        [
            "mvn",
            "-q",
            "-B",
            COPY_GOAL,
            f"-Dartifact={ARTIFACT_COORDINATES}",
            f"-DoutputDirectory={staging}",
        ],
        capture_output=True,
        text=True,
        timeout=600,
        cwd=staging,
    )
    archive = next(staging.glob("*.tar.gz"), None)
    if archive is None:
        last = (done.stdout + done.stderr).strip().splitlines()[-1:]
        skip_or_fail(f"Apicurio cannot be fetched: {' '.join(last)}")
    with tarfile.open(archive) as packed:
        packed.extractall(staging / "app", filter="data")
