"""Copies of the project's files, to build them where nothing else lies about."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]


def list_source_files(*folders: str) -> list[str]:
    """The files of the project below these folders, without what was built or installed."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", *folders]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return sorted(line for line in done.stdout.splitlines() if (ROOT / line).is_file())


def copy_source(place: Path, *folders: str) -> Path:
    """Copy the project, or some of its folders, as a fresh clone would have it."""
    for name in list_source_files(*folders):
        target = place / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, target)
    return place
