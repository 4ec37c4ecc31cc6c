"""Configure the log of a command that serves before its configuration is loaded."""

from __future__ import annotations

import os
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

LOG_FORMAT_VARIABLE = "GATEWAY_LOG_FORMAT"


class LogFormat(StrEnum):
    """How log lines are written; the values of `telemetry.logs.format`."""

    CONSOLE = "console"
    JSON = "json"


LogFormatOption = Annotated[
    LogFormat | None,
    typer.Option(
        "--log-format",
        envvar=LOG_FORMAT_VARIABLE,
        metavar="FORMAT",
        help="console or json, from the first line on; overrides telemetry.logs.format.",
    ),
]


def begin_log(log_format: LogFormat | None, file: Path | None) -> None:
    """Write JSON lines from now on if that is asked for; otherwise change nothing.

    Args:
        log_format: What the command line or the environment asks for; None for nothing.
        file: The configuration, which is asked then; it may be wrong. None for none.
    """
    from gateway.config.source.log_format import find_log_format
    from gateway.telemetry import logs

    found = str(log_format or "")
    if not found:
        try:
            text = "" if file is None else file.read_bytes().decode(errors="replace")
        except OSError:  # which loading it reports
            text = ""
        found = find_log_format(text, str(file), os.environ)
    if found == LogFormat.JSON:
        logs.configure("json")
        logs.capture_stray_lines()
