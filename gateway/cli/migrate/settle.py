"""What converters have in common: values that are off, durations, and files with keys."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gateway.config.source.expression import escape

from .report import SourceValue

_OFF = "is off, as here"
_GO_DURATION = re.compile(r"(?:\d+(?:\.\d+)?(?:ms|s|m|h))+")
_GO_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h)")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


def settle(source: SourceValue, reasons: Mapping[str, str]) -> None:
    """Omit the known keys of a mapping, each for its reason; those that are off are implied.

    Args:
        source: The mapping. Keys that already have an outcome keep it.
        reasons: Why each key is not carried, and what to do instead.
    """
    for key, value in source.items():
        if key in reasons and value.value in (None, False, 0, "", [], {}):
            value.imply(_OFF)
        elif key in reasons:
            value.omit(reasons[key])


def convert_duration(text: str) -> str | None:
    """Return a duration of Go, such as `1h30m`, as it is written here; None if it is none."""
    if not _GO_DURATION.fullmatch(text):
        return None
    milliseconds = sum(
        round(float(number) * _SECONDS[unit] * 1000) for number, unit in _GO_PART.findall(text)
    )
    is_whole = milliseconds % 1000 == 0
    return f"{milliseconds // 1000}s" if is_whole else f"{milliseconds}ms"


def find_file(source: SourceValue, folder: Path) -> str | None:
    """Return the path of a file that a value names, relative to a folder; None if there is none.

    Args:
        folder: The folder of the file that will be written.
    """
    text = source.text
    if not text or "\n" in text or len(text) > 1000:
        return None
    path = Path(source.report.source.name).parent / text
    try:
        if not path.is_file():
            return None
    except (OSError, ValueError):
        return None
    return text if Path(text).is_absolute() else os.path.relpath(path, folder)


def escape_texts(value: Any) -> Any:
    """Return values in whose texts nothing has a meaning here."""
    if isinstance(value, dict):
        return {key: escape_texts(item) for key, item in value.items()}
    if isinstance(value, list):
        return [escape_texts(item) for item in value]
    return escape(value) if isinstance(value, str) else value
