"""The command: `python -m faults --seeds 1-20 --seconds 60`, with `tests` in the path."""

from __future__ import annotations

import argparse
import asyncio
import logging
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from .report import write_report
from .results import read_results, write_result
from .run import RunOptions, run_seed
from .schedule import KINDS, KINDS_BY_NAME, FaultKind, build_schedule

DEFAULT_DIRECTORY = Path("faults-report")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run seeds, write their results and the report; 1 if anything was found."""
    parser = argparse.ArgumentParser(prog="make faults", description=__doc__)
    parser.add_argument("--seeds", default="1", help="such as 7 or 1-20 or 1,5,9; default 1")
    parser.add_argument("--seconds", type=float, default=60.0, help="of a schedule; default 60")
    parser.add_argument("--clients", type=int, default=200, help="in all; default 200")
    parser.add_argument("--kind", action="append", choices=KINDS_BY_NAME, help="only these faults")
    parser.add_argument("--report", type=Path, default=DEFAULT_DIRECTORY, help="a directory")
    parser.add_argument("--list", action="store_true", help="print the schedules alone")
    asked = parser.parse_args(arguments)
    kinds = [KINDS_BY_NAME[name] for name in asked.kind] if asked.kind else KINDS
    seeds = _parse_seeds(asked.seeds)
    if asked.list:
        for seed in seeds:
            _print_schedule(seed, asked.seconds, kinds)
        return 0
    # The oracle's reader says each time that a broker is gone: that is what happens here.
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL + 1)
    # A shell has jobs in the background ignore ^C; and whoever ends it, brokers must not be left.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    options = RunOptions(asked.seconds, asked.clients, kinds, _print_line, asked.report)
    is_clean = True
    for seed in seeds:
        result = asyncio.run(run_seed(seed, options))
        is_clean &= result.is_clean
        write_result(result, asked.report)
        for finding in result.findings:
            _print_line(finding)
        if result.error:
            _print_line(result.error)
        _print_line(result.verdict)
        path = write_report(read_results(asked.report), asked.report)
    _print_line(f"the report is {path}")
    return 0 if is_clean else 1


def _parse_seeds(text: str) -> list[int]:
    seeds: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        seeds += range(int(first), int(last or first) + 1)
    return seeds


def _print_schedule(seed: int, seconds: float, kinds: Sequence[FaultKind]) -> None:
    for fault in build_schedule(seed, seconds, kinds):
        _print_line(f"seed {seed} {fault.at_s:7.2f} s  {fault.kind.name}, {fault.duration_s:g} s")


def _print_line(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main())
