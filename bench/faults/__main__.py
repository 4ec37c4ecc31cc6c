"""The command: `python -m bench.faults --seeds 1-20 --seconds 60`."""

from __future__ import annotations

import argparse
import asyncio
import logging
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from .report import write_report
from .results import SeedResult, append_result, merge_results, read_results
from .run import RunOptions, run_seed
from .schedule import JOB_KINDS, KINDS, KINDS_BY_NAME, FaultKind, build_schedule

DEFAULT_DIRECTORY = Path("faults-report")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run seeds, write their results and the report; 1 if anything was found."""
    parser = _create_parser()
    asked = parser.parse_args(arguments)
    seeds, kinds = _parse_seeds(asked.seeds), _choose_kinds(asked)
    if asked.list:
        for seed in seeds:
            _print_schedule(seed, asked.seconds, kinds)
        return 0
    if asked.merge:
        try:
            merge_results(asked.merge, asked.report)
        except FileNotFoundError as error:
            parser.error(str(error))
        return _finish(asked.report)
    # The oracle's reader says each time that a broker is gone: that is what happens here.
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL + 1)
    # A shell has jobs in the background ignore ^C; and whoever ends it, brokers must not be left.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    options = RunOptions(
        asked.seconds, asked.clients, kinds, asked.spark, _print_line, asked.report
    )
    _run_seeds(seeds, options, asked.report, repeats=asked.again)
    return _finish(asked.report)


def _create_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="make faults", description=__doc__)
    parser.add_argument("--seeds", default="1", help="such as 7 or 1-20 or 1,5,9; default 1")
    parser.add_argument("--seconds", type=float, default=60.0, help="of a schedule; default 60")
    parser.add_argument("--clients", type=int, default=200, help="in all; default 200")
    parser.add_argument("--kind", action="append", choices=KINDS_BY_NAME, help="only these faults")
    parser.add_argument(
        "--spark",
        action="store_true",
        help="run a Spark job, too, and kill it now and then. Not by default: each start takes as "
        "much CPU as all else does in 10 s, so on a small machine every lag would be Spark's",
    )
    parser.add_argument(
        "--report", type=Path, default=DEFAULT_DIRECTORY, help="a directory, which keeps results"
    )
    parser.add_argument(
        "--again", action="store_true", help="also seeds whose results the directory has already"
    )
    parser.add_argument(
        "--merge",
        type=Path,
        nargs="+",
        metavar="DIRECTORY",
        help="run nothing; add the results of these directories to the report",
    )
    parser.add_argument("--list", action="store_true", help="print the schedules alone")
    return parser


def _choose_kinds(asked: argparse.Namespace) -> Sequence[FaultKind]:
    if asked.kind:
        return [KINDS_BY_NAME[name] for name in asked.kind]
    return [*KINDS, *JOB_KINDS] if asked.spark else KINDS


def _run_seeds(
    seeds: Sequence[int], options: RunOptions, directory: Path, *, repeats: bool
) -> None:
    """Run the seeds, and write the result and the report at the end of each."""
    results = {} if repeats else {each.seed: each for each in read_results(directory)}
    done = [seed for seed in seeds if seed in results and _is_done(results[seed], options)]
    if done:
        _print_line(f"{directory} has {len(done)} of these seeds already; --again repeats them")
    for seed in (each for each in seeds if each not in done):
        result = asyncio.run(run_seed(seed, options))
        append_result(result, directory)
        write_report(read_results(directory), directory)
        for line in (*result.findings, result.error, result.verdict):
            if line:
                _print_line(line)


def _is_done(result: SeedResult, options: RunOptions) -> bool:
    """Return whether a seed was played to its end, with the same clients and schedule."""
    planned = build_schedule(result.seed, options.seconds, options.kinds)
    return (
        not result.error
        and result.clients == options.clients
        and sorted((each.kind, each.planned_at) for each in result.faults)
        == sorted((each.kind.name, each.at_s) for each in planned)
    )


def _finish(directory: Path) -> int:
    """Write the report of all results; 1 if a seed is not clean."""
    results = read_results(directory)
    path = write_report(results, directory)
    _print_line(f"the report of {len(results)} seeds is {path}")
    return 0 if all(each.is_clean for each in results) else 1


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
