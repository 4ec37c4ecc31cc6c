"""The names of the formats that lines of output have; see `printing`."""

from __future__ import annotations

from enum import StrEnum


class Style(StrEnum):
    PRETTY = "pretty"
    JSON = "json"
    VALUE = "value"
