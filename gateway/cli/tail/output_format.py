"""Name the formats of records, in a module that `--help` can import quickly (see `printer`)."""

from __future__ import annotations

from enum import StrEnum


class OutputFormat(StrEnum):
    """The values of `--format`."""

    PRETTY = "pretty"
    JSON = "json"
    VALUE = "value"
