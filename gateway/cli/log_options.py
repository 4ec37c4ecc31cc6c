"""Define the log options of the commands that serve, and begin the log before anything else."""

from __future__ import annotations

import os
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from gateway.telemetry.logs import COMPONENTS

LOG_FORMAT_VARIABLE = "GATEWAY_LOG_FORMAT"


class LogFormat(StrEnum):
    """The values of `telemetry.logs.format`."""

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
    """Write JSON lines from now on if that is asked for, also by a file that is wrong elsewhere."""
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


def _validate_components(names: Sequence[str] | None) -> Sequence[str] | None:
    for name in names or ():
        if name not in COMPONENTS:
            from gateway.config.source.expression import find_closest

            closest = find_closest(name.removeprefix("gateway."), COMPONENTS)
            hint = f"did you mean '{closest}'?" if closest else f"use {', '.join(COMPONENTS)}"
            raise typer.BadParameter(f"unknown component '{name}'; {hint}")
    return names


def _complete_component(incomplete: str) -> list[str]:
    return [name for name in COMPONENTS if name.startswith(incomplete)]


DebugOption = Annotated[
    list[str] | None,
    typer.Option(
        "--debug",
        metavar="COMPONENT",
        callback=_validate_components,
        autocompletion=_complete_component,
        help=f"Log in detail what a component does; repeatable. One of {', '.join(COMPONENTS)}.",
    ),
]
