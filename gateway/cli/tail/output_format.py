"""The names of the formats that lines of output have; see `printing`."""

from __future__ import annotations

from enum import StrEnum


class OutputFormat(StrEnum):
    PRETTY = "pretty"
    JSON = "json"
    VALUE = "value"
