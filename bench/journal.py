"""Save the results of a run while it goes on, so that an interrupted run can be continued.

A run is a folder of bench/results, named by its start time. `run.json` has the machine, the
versions and the arguments; `cells.jsonl` has a line for each work and peer. The table, the CSV and
the plots are made from these.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from .works.work import PACED_SUFFIX, RATE_FIGURES, ROUNDS_PER_SECOND, Cell, Row

TIMESTAMP_FORMAT = "%Y-%m-%dT%H%M%SZ"


@dataclass
class Run:
    """facts: the machine and the versions. asked: works and peers, by name.

    cells: by work and peer. absent: peers that could not take part, and what they lack.
    failed: works and peers (`lat raw-sse`) that were tried in vain, and why.
    """

    folder: Path | None
    facts: dict[str, Any]
    asked: dict[str, list[str]]
    finished: bool = False
    absent: dict[str, str] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    cells: dict[tuple[str, str], Cell] = field(default_factory=dict)

    @classmethod
    def create(
        cls, directory: Path | None, facts: dict[str, Any], asked: dict[str, list[str]]
    ) -> Run:
        """within: the folder of all runs; None keeps nothing."""
        if directory is None:
            return cls(None, facts, asked)
        run = cls(directory / datetime.now(UTC).strftime(TIMESTAMP_FORMAT), facts, asked)
        assert run.folder is not None
        run.folder.mkdir(parents=True)
        run.save()
        return run

    @classmethod
    def load(cls, folder: Path) -> Run:
        told = json.loads((folder / "run.json").read_text())
        run = cls(folder, **told)
        for each in _read_lines(folder / "cells.jsonl"):
            rows = [Row(*row) for row in each["rows"]]
            run.cells[each["work"], each["peer"]] = Cell(rows, each["notes"], each["seconds"])
        return run

    @classmethod
    def find_interrupted(cls, directory: Path, asked: Mapping[str, Sequence[str]]) -> Run | None:
        """The last run that was asked for the same, if it was not finished."""
        for file in sorted(directory.glob("*/run.json"), reverse=True):
            run = cls.load(file.parent)
            if run.asked == asked:
                return None if run.finished else run
        return None

    def get_raw_share(self, work: str, peer: str, row: Row, is_paced: bool = False) -> float | None:
        """A rate as a share of the raw loop's on the same wire, in the same work and case.

        paced: of what the loop reached at the gateway's pace, instead of back to back."""
        raw = self.cells.get((work, "raw-" + _get_wire(peer)))
        if row.what not in RATE_FIGURES or raw is None:
            return None
        case = row.case.removesuffix(PACED_SUFFIX) + (PACED_SUFFIX if is_paced else "")
        same = [r.value for r in raw.rows if (r.case, r.what) == (case, row.what)]
        return row.value / same[0] if same else None

    def get_round_rates(self, work: str, peer: str) -> dict[str, float]:
        """Rounds a second of the gateway on the same wire, by case; empty if it had none."""
        ours = self.cells.get((work, "gateway-" + _get_wire(peer)))
        return (
            {row.case: row.value for row in ours.rows if row.what == ROUNDS_PER_SECOND}
            if ours
            else {}
        )

    def save(self) -> None:
        if self.folder is None:
            return
        told = asdict(self)
        kept = {name: told[name] for name in ("facts", "asked", "finished", "absent", "failed")}
        (self.folder / "run.json").write_text(json.dumps(kept, indent=1) + "\n")

    def add_cell(self, work: str, peer: str, cell: Cell) -> None:
        self.cells[work, peer] = cell
        self.failed.pop(f"{work} {peer}", None)
        if self.folder is not None:
            line = {"work": work, "peer": peer, **vars(cell)}
            with (self.folder / "cells.jsonl").open("a") as file:
                file.write(json.dumps(line) + "\n")


def _get_wire(peer: str) -> str:
    return peer.rpartition("-")[2]


def _read_lines(file: Path) -> Iterator[dict[str, Any]]:
    """A line that was cut off is measured again; the next one must not be written behind it."""
    text = file.read_text() if file.exists() else ""
    if text and not text.endswith("\n"):
        with file.open("a") as end:
            end.write("\n")
    for line in text.splitlines():
        with suppress(json.JSONDecodeError):
            yield json.loads(line)
