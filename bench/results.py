"""Keep what runs found: one format for every command of the bench.

A run is a folder of bench/results, named by its start time. `run.json` has the machine, the
versions and the arguments; `cells.jsonl` has a line for each work and peer; `table.md` is the page
of these. All are written anew after each cell, so that an interrupted run can be continued.
"""

from __future__ import annotations

import json
import math
import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import typer

from gateway.kafka.local.java import KAFKA_VERSION

from .machine import Cost, describe_cores

DIRECTORY = Path(__file__).parent / "results"
PACKAGES = ("uvicorn", "uvloop", "starlette", "aiokafka", "confluent-kafka", "orjson")
TIMESTAMP_FORMAT = "%Y-%m-%dT%H%M%SZ"
PER_CPU = "deliveries of a CPU second"
PER_SECOND = "deliveries of a second"
ROUNDS_PER_SECOND = "rounds of a second"
RATE_FIGURES = (PER_CPU, PER_SECOND)
PACED_SUFFIX = ", paced"  # ends the case of a bare loop that does not go back to back


def quantile(samples: Sequence[float], q: float) -> float:
    """The smallest sample that a share `q` of all does not exceed (nearest rank)."""
    ordered = sorted(samples)
    return ordered[max(0, math.ceil(q * len(ordered)) - 1)]


def median(samples: Sequence[float]) -> float:
    return quantile(samples, 0.5)


class Row(NamedTuple):
    """One number. case: under what (`200 clients`). low, high: of the repeats; n: how many."""

    case: str
    what: str
    value: float
    unit: str
    low: float
    high: float
    n: int


@dataclass
class Cell:
    """All that one work found of one peer. notes: what a reader must know of it. seconds: that
    it took, with starting and ending."""

    rows: list[Row] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    seconds: float = 0.0
    work: str = ""
    peer: str = ""

    def add_row(self, case: str, what: str, unit: str, *values: float, n: int = 0) -> None:
        """The median of the repeats. n: the samples that a single value stands for."""
        low, high = min(values), max(values)
        self.rows.append(Row(case, what, median(values), unit, low, high, n or len(values)))

    def add_note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    def add_cost_notes(self, case: str, costs: Sequence[Cost]) -> None:
        """Say when it was not the server that was measured."""
        client = median([c.client_cpu_s / c.wall_s for c in costs])
        ours = median([c.local_cpu_s / c.wall_s for c in costs])
        server, clients = (median([c.foreign_shares[n] for c in costs]) for n in (0, 1))
        if client > 0.9:
            self.add_note(f"{case}: the clients took {client:.0%} of a core; they were the limit")
        elif ours > 0.9:
            self.add_note(f"{case}: clients, producer and Kafka took {ours:.0%} of their core")
        if max(server, clients) > 0.05:
            taken = f"{server:.0%} of the server's core, {clients:.0%} of the clients'"
            self.add_note(f"{case}: others took {taken}")

    def add_times(
        self, case: str, repeats: Sequence[Sequence[float]], what: str = "latency"
    ) -> None:
        """In ms, from seconds. A quantile is not claimed of fewer samples than it needs: the worst
        stands in its place."""
        fewest = min(map(len, repeats))
        wanted = [("p50", 0.5, 1), ("p99", 0.99, 100), ("p99.9", 0.999, 1000)]
        chosen = [(name, q) for name, q, least in wanted if fewest >= least]
        for name, q in chosen if fewest >= 100 else [*chosen, ("worst", 1.0)]:
            times = [1000 * quantile(seconds, q) for seconds in repeats]
            self.add_row(case, f"{what} {name}", "ms", *times)


@dataclass
class Run:
    """facts: the machine and the versions. asked: works and peers, by name.

    cells: in the order of their ends. absent: peers that could not take part, and what they lack.
    failed: works and peers (`lat raw-sse`) that were tried in vain, and why.
    """

    folder: Path | None
    facts: dict[str, Any]
    asked: dict[str, list[str]]
    finished: bool = False
    absent: dict[str, str] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    cells: list[Cell] = field(default_factory=list)

    @classmethod
    def create(
        cls,
        directory: Path | None,
        facts: dict[str, Any],
        asked: dict[str, list[str]],
        suffix: str = "",
    ) -> Run:
        """directory: the folder of all runs; None keeps nothing."""
        if directory is None:
            return cls(None, facts, asked)
        folder = directory / (datetime.now(UTC).strftime(TIMESTAMP_FORMAT) + suffix)
        folder.mkdir(parents=True)
        return cls(folder, facts, asked)

    @classmethod
    def load(cls, folder: Path) -> Run:
        run = cls(folder, **json.loads((folder / "run.json").read_text()))
        for line in (folder / "cells.jsonl").read_text().splitlines():
            told = json.loads(line)
            run.cells.append(Cell(**{**told, "rows": [Row(*row) for row in told["rows"]]}))
        return run

    @classmethod
    def find_interrupted(cls, directory: Path, asked: Mapping[str, Sequence[str]]) -> Run | None:
        """The last run that was asked for the same, if it was not finished."""
        for file in sorted(directory.glob("*/run.json"), reverse=True):
            if json.loads(file.read_text())["asked"] == asked:
                run = cls.load(file.parent)
                return None if run.finished else run
        return None

    def get_cell(self, work: str, peer: str) -> Cell | None:
        found = [cell for cell in self.cells if (cell.work, cell.peer) == (work, peer)]
        return found[0] if found else None

    def get_raw_share(self, cell: Cell, row: Row, *, is_paced: bool = False) -> float | None:
        """A rate as a share of the raw loop's on the same wire, in the same work and case.

        is_paced: of what the loop reached at the gateway's pace, instead of back to back.
        """
        raw = self.get_cell(cell.work, "raw-" + _get_wire(cell.peer))
        if row.what not in RATE_FIGURES or raw is None:
            return None
        case = row.case.removesuffix(PACED_SUFFIX) + (PACED_SUFFIX if is_paced else "")
        same = [r.value for r in raw.rows if (r.case, r.what) == (case, row.what)]
        return row.value / same[0] if same else None

    def get_round_rates(self, work: str, peer: str) -> dict[str, float]:
        """Rounds a second of the gateway on the same wire, by case; empty if it had none."""
        ours = self.get_cell(work, "gateway-" + _get_wire(peer))
        rows = ours.rows if ours else ()
        return {row.case: row.value for row in rows if row.what == ROUNDS_PER_SECOND}

    def add_cell(self, work: str, peer: str, cell: Cell) -> None:
        cell.work, cell.peer = work, peer
        self.cells.append(cell)
        self.failed.pop(f"{work} {peer}", None)

    def save(self, page: str) -> None:
        """Write everything; what was there is replaced at once, whatever happens to the machine."""
        if self.folder is None:
            return
        told = asdict(self)
        cells = "".join(json.dumps(each) + "\n" for each in told.pop("cells"))
        del told["folder"]
        files = {"table.md": page, "cells.jsonl": cells, "run.json": json.dumps(told, indent=1)}
        for name, text in files.items():
            new = self.folder / f"{name}.new"
            new.write_text(text)
            new.replace(self.folder / name)


def describe_machine(note: str = "") -> dict[str, Any]:
    """When, where and with what: all that two runs must share to be compared."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": get_commit(),
        "cores": os.cpu_count(),
        "processor": _get_processor_name(),
        "memory_gb": round(psutil.virtual_memory().total / 1e9, 1),
        "python": platform.python_version(),
        **{name: version(name) for name in PACKAGES},
        "kafka": KAFKA_VERSION,
        # Of the last minute; above the number of cores others ran beside us.
        "load_before": round(os.getloadavg()[0], 1),
        **({"note": note} if note else {}),
        "pinned": describe_cores(),
    }


def format_number(value: float) -> str:
    """Three digits that count; more would pretend."""
    if abs(value) >= 100:
        return f"{round(value, 2 - len(str(int(abs(value)))) + 1):,.0f}"
    return f"{value:.3g}"


def get_commit(checkout: Path = DIRECTORY.parent.parent) -> str:
    """The checkout that was measured, `+` for changes in the package that are not in it."""
    asked = ["git", "describe", "--always", "--abbrev=9", "--dirty=+"]
    try:
        done = subprocess.run(asked, cwd=checkout, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return done.stdout.strip()


def resolve_checkout(path: Path) -> Path:
    """Return the absolute path of a checkout. Raises typer.BadParameter where it is none."""
    if not (path / "gateway" / "__main__.py").exists():
        raise typer.BadParameter(f"{path.resolve()} is no checkout of the gateway; name its folder")
    return path.resolve()


def _get_wire(peer: str) -> str:
    return peer.rpartition("-")[2]


def _get_processor_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
