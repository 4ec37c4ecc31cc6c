"""The command that runs jobs on a cluster: spark-submit, with the connector and this package.

Executors get this package as an archive, so that they run what the driver runs; what it depends on
(`pip install gateway[pipeline]`) must be there, in the Python that PYSPARK_PYTHON names.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import sys
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NoReturn

from gateway.config.pipeline import Spark
from gateway.errors import PipelineError
from gateway.kafka.local.maven import cached

from . import java
from .session import settings

PACKAGE = Path(__file__).parents[1]
_STAMP = (1980, 1, 1, 0, 0, 0)  # the archive depends on its contents only
_OWN = {"spark.master", "spark.jars", "spark.driver.memory", "spark.executor.memory"}


def command(
    spark: Spark, arguments: Sequence[str], *, driver: Path, jars: Sequence[Path], package: Path
) -> list[str]:
    """The line. driver: the program, and its arguments."""
    made = settings(spark, jars=jars)
    conf = {name: value for name, value in made.items() if name not in _OWN}
    memory = f"{spark.memory // 1024**2}m"
    return [
        str(_spark_submit()),
        *("--master", made["spark.master"], "--name", "gateway"),
        *("--driver-memory", memory, "--executor-memory", memory),
        *("--jars", ",".join(map(str, jars)), "--py-files", str(package)),
        *(word for name, value in conf.items() for word in ("--conf", f"{name}={value}")),
        *(str(driver), *arguments),
    ]


def run(line: Sequence[str]) -> NoReturn:
    """In place of this process. Raises PipelineError: no Java."""
    java.found()
    sys.stdout.flush()
    os.execvpe(line[0], list(line), {"PYSPARK_PYTHON": sys.executable, **os.environ})


def archive() -> Path:
    """This package as a zip, made once for each content."""
    files = sorted(_files())
    digest = hashlib.sha256()
    for path in files:
        digest.update(path.relative_to(PACKAGE).as_posix().encode() + b"\0" + path.read_bytes())
    target = cached("submit") / f"gateway-{digest.hexdigest()[:16]}.zip"
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        part = target.with_suffix(f".{os.getpid()}")
        with zipfile.ZipFile(part, "w", zipfile.ZIP_DEFLATED) as out:
            for path in files:
                name = f"{PACKAGE.name}/{path.relative_to(PACKAGE).as_posix()}"
                out.writestr(zipfile.ZipInfo(name, _STAMP), path.read_bytes())
        part.rename(target)
    return target


def _files() -> Iterator[Path]:
    for path in PACKAGE.rglob("*"):
        if path.is_file() and "__pycache__" not in path.parts:
            yield path


def _spark_submit() -> Path:
    if home := os.environ.get("SPARK_HOME"):
        return Path(home) / "bin" / "spark-submit"
    found = importlib.util.find_spec("pyspark")
    if found is None or found.origin is None:
        raise PipelineError("Spark is not installed; pip install 'gateway[pipeline]'")
    return Path(found.origin).parent / "bin" / "spark-submit"
