"""Name the formats of records on standard output.

A module of its own, so that `--help` does not import what formats them (see `printer`).
"""

from __future__ import annotations

from enum import StrEnum


class OutputFormat(StrEnum):
    """The values of `--format`."""

    PRETTY = "pretty"
    JSON = "json"
    VALUE = "value"
