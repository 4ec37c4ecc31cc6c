"""Save figures: as a table for people, and as JSON lines for later comparison.

There is one pair of files per day in `bench/results`; runs of that day are appended.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeAlias

import psutil
import typer

from gateway.kafka.local.java import KAFKA_VERSION

from .figure import Figure

DIRECTORY = Path(__file__).parent / "results"
GoalFormatter: TypeAlias = Callable[[str, Figure], str]
"""What a figure of a measurement is held against, in words; nothing if it is not."""
PACKAGES = ("uvicorn", "uvloop", "starlette", "aiokafka", "confluent-kafka", "orjson")


def describe_machine(note: str = "") -> dict[str, Any]:
    """When, where and with what: all that two runs must share to be compared."""
    versions = {name: version(name) for name in PACKAGES}
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": get_commit(),
        "cores": os.cpu_count(),
        "processor": _get_processor_name(),
        "memory_gb": round(psutil.virtual_memory().total / 1e9, 1),
        "python": platform.python_version(),
        **versions,
        "kafka": KAFKA_VERSION,
        **get_load("before"),
        **({"note": note} if note else {}),
    }


def get_load(label: str) -> dict[str, float]:
    """The load average of the last minute; above the number of cores others ran beside us."""
    return {f"load_{label}": round(os.getloadavg()[0], 1)}


def render_table(
    machine: Mapping[str, Any],
    figures_by_name: Mapping[str, Sequence[Figure]],
    format_goal: GoalFormatter | None = None,
) -> str:
    """Markdown. judged: for a column of goals."""
    facts = ", ".join(f"{name} {value}" for name, value in machine.items() if name != "date")
    goal = (lambda _: "") if format_goal is None else " {} |".format
    lines = [f"## {machine['date']}", "", facts + ".", ""]
    lines += ["| | measured | value | unit | n |" + goal("goal")]
    lines += ["|---|---|---:|---|---:|" + goal("---").replace(" ", "")]
    for name, figures in figures_by_name.items():
        for n, figure in enumerate(figures):
            what, value = figure.what, format_number(figure.value)
            head = name if n == 0 else ""
            line = f"| {head} | {what} | {value} | {figure.unit} | {figure.n} |"
            lines.append(line + goal(format_goal(name, figure) if format_goal else ""))
    return "\n".join(lines) + "\n"


def save_figures(
    machine: Mapping[str, Any],
    figures_by_name: Mapping[str, Sequence[Figure]],
    directory: Path = DIRECTORY,
    format_goal: GoalFormatter | None = None,
) -> Path:
    """Append to the day's files; the path of the Markdown one."""
    directory.mkdir(exist_ok=True)
    day = directory / str(machine["date"])[:10]
    with day.with_suffix(".jsonl").open("a") as file:
        for name, figures in figures_by_name.items():
            rows = [figure._asdict() for figure in figures]
            file.write(json.dumps({**machine, "measurement": name, "figures": rows}) + "\n")
    path = day.with_suffix(".md")
    with path.open("a") as file:
        file.write(render_table(machine, figures_by_name, format_goal) + "\n")
    return path


def format_number(value: float) -> str:
    """Three digits that count; more would pretend."""
    if abs(value) >= 100:
        return f"{round(value, 2 - len(str(int(abs(value)))) + 1):,.0f}"
    return f"{value:.3g}"


def get_commit(checkout: Path = DIRECTORY.parent.parent) -> str:
    """The checkout that was measured, `+` for changes in the package that are not in it."""
    asked = ["git", "describe", "--always", "--abbrev=9", "--dirty=+"]
    try:
        return subprocess.run(
            asked, cwd=checkout, capture_output=True, text=True, check=True
        ).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def resolve_checkout(path: Path) -> Path:
    """Return the absolute path of a checkout. Raises typer.BadParameter where it is none."""
    if not (path / "gateway" / "__main__.py").exists():
        raise typer.BadParameter(f"{path.resolve()} is no checkout of the gateway; name its folder")
    return path.resolve()


def _get_processor_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
