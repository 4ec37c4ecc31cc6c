"""The Spark job of the bench, which copies `ledger` to `ledger-rows` exactly once.

It reads the brokers directly. Its process tree is killed and started again, and it is started again
when it ends by itself, as whoever runs it would do.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from support.pipeline_process import PipelineProcess, write_config
from support.stream_check import AckedRecord, FindingKind

from .judge import JOB, ClientFinding
from .truth import Truth
from .views import LEDGER, Topic

ROWS = Topic("ledger-rows", ([1, 2, 3], [2, 3, 1]), {"min.insync.replicas": "2"})
MAX_FINDINGS = 50


class SparkJob:
    """The process of the job, started and ended by the world.

    Attributes:
        start_count: How often it was started.
    """

    def __init__(self, servers: str, directory: Path) -> None:
        """Write the configuration.

        Args:
            servers: The bootstrap servers, not through the proxy.
            directory: For the configuration, the checkpoint and the logs.
        """
        fields = {"n": "bigint", "lane": "string"}
        job = {
            "name": "copy",
            "type": "query",
            "tables": {"ledger": {"topic": LEDGER, "value": {"fields": fields}}},
            "sql": "SELECT n, lane FROM ledger",
            "to": {"topic": ROWS.name},
        }
        self._directory = directory
        self._config = write_config(
            directory / "pipeline.yaml", servers, job, checkpoints=directory / "checkpoints"
        )
        self._process: PipelineProcess | None = None
        self.start_count = 0

    def start(self) -> None:
        """Start it, unless it runs."""
        if self._process is None or self._process.process.poll() is not None:
            self.start_count += 1
            log = self._directory / f"job-{self.start_count}.log"
            self._process = PipelineProcess(["run", "all", "-c", self._config], log)

    def kill(self) -> int:
        """Kill its process tree by SIGKILL; returns how many processes there were."""
        if self._process is None or self._process.process.poll() is not None:
            return 0
        count = 1 + len(self._process.list_descendants())
        self._process.close()
        return count

    def read_logs(self) -> list[str]:
        """Return all lines of all its processes."""
        logs = sorted(self._directory.glob("job-*.log"))
        return [line for log in logs for line in log.read_text(errors="replace").splitlines()]


def _read_number(value: bytes | None) -> int:
    return int(json.loads(value or b"{}").get("n", -1))


def count_lacking_rows(rows: Iterable[AckedRecord], truth: Truth) -> int:
    """Return how many rows the job has yet to write."""
    return sum((_count_wanted(truth) - _count_numbers(rows)).values())


def judge_rows(rows: Iterable[AckedRecord], truth: Truth) -> list[ClientFinding]:
    """Return what is wrong with the committed rows of the output: one for each committed record."""
    wanted, found = _count_wanted(truth), _count_numbers(rows)
    aborted = {
        _read_number(value) for each in truth.truths.values() for value in each.aborted_values
    }
    findings = [(FindingKind.LOST, number) for number in (wanted - found).elements()]
    for number in (found - wanted).elements():
        if wanted[number]:
            kind = FindingKind.DUPLICATE
        else:
            kind = FindingKind.ABORTED if number in aborted else FindingKind.PHANTOM
        findings.append((kind, number))
    return [
        ClientFinding(JOB, ROWS.name, "", kind, None, -1, f"the row of record n={number}")
        for kind, number in findings[:MAX_FINDINGS]
    ]


def _count_wanted(truth: Truth) -> Counter[int]:
    return _count_numbers(each for each in truth.read_records if each.tp.topic == LEDGER)


def _count_numbers(records: Iterable[AckedRecord]) -> Counter[int]:
    return Counter(_read_number(each.value) for each in records)
