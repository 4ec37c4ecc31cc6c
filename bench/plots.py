"""The run as pictures; needs matplotlib (the extra `bench`)."""

from __future__ import annotations

from pathlib import Path

from .journal import Run


def draw(run: Run, folder: Path) -> None:
    import matplotlib  # noqa: F401
