"""Let thousands of clients come and go under faults, and look whether anything grows.

A gateway of two workers serves clients that come, stay for a time, leave cleanly or abruptly, and
come back with their position, while records are sent and a fault happens every minute: a worker or
a broker is killed, connections are reset or carry nothing, the configuration is reloaded. Every
five seconds the memory of each worker and the latency of records are sampled. At the end all
clients leave.

It fails (exit status 1) if

  - a worker then has more tasks, descriptors or objects of clients than before the first client,
  - a record was lost or came twice,
  - memory grows by more than 1 % in ten minutes, after a third of the time for warming up, and
    after the first ten minutes of a worker, in which its cache fills,
  - median or 99th percentile of latency, in windows without faults, are more than 1.2 times those
    of the beginning,
  - a fault had no effect.

Memory and latency mean something on a machine that does nothing else, and after ten minutes or
more. Exit status 2: the soak itself failed.

  make soak MINUTES=30
  make soak MINUTES=10 CLIENTS=1000 RATE=1000
  make soak ARGS="--seed 7"
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import resource
import signal
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

import uvloop
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from .report import build_report
from .result import SoakResult, write_result
from .run import SoakOptions, run_soak


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a soak, write its result and report; 1 if anything is wrong, 2 if it did not run."""
    asked = _parse_arguments(arguments)
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL + 1)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    # A shell has jobs in the background ignore ^C; and whoever ends it, brokers must not be left.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    options = SoakOptions(asked.minutes, asked.clients, asked.rate, asked.seed)
    try:
        result = _run(options)
    except Exception:
        traceback.print_exc()
        return 2
    asked.report.mkdir(parents=True, exist_ok=True)
    write_result(result, asked.report / "soak.json")
    page = asked.report / "index.html"
    page.write_text(build_report(result), encoding="utf-8")
    problems = list(result.list_problems())
    for line in problems:
        print(line)
    print(f"{'failed' if problems else 'passed'}; the report is {page}")
    return 1 if problems else 0


def _parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="make soak",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--minutes", type=float, default=30.0, help="default 30")
    parser.add_argument("--clients", type=int, default=5000, help="at a time; default 5000")
    parser.add_argument("--rate", type=float, default=5000.0, help="records a second; default 5000")
    parser.add_argument("--seed", type=int, default=1, help="of all choices; default 1")
    parser.add_argument("--report", type=Path, default=Path("soak-report"), help="a directory")
    return parser.parse_args(arguments)


def _run(options: SoakOptions) -> SoakResult:
    """Run it with a progress bar on the standard error, which is drawn between windows only."""
    console = Console(stderr=True, highlight=False)
    columns = TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn()
    with Progress(*columns, console=console, auto_refresh=False) as progress:
        task = progress.add_task("starting", total=options.duration_s)

        def show_progress(at_s: float, line: str) -> None:
            progress.update(task, completed=at_s, description=line)
            progress.refresh()

        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(run_soak(options, show_progress))


if __name__ == "__main__":
    sys.exit(main())
