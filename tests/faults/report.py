"""The report of a directory of results."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from .results import SeedResult


def write_report(results: Sequence[SeedResult], directory: Path) -> Path:
    """Write the report and return its path."""
    path = directory / "index.html"
    path.write_text("\n".join(each.verdict for each in results))
    return path
