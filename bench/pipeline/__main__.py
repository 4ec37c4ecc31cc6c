"""Measure Spark's jobs, print a table and keep the result: `python -m bench.pipeline`.

Each measurement is a module of this package with `measure(size) -> list[Figure]`, and `SMALL`, the
size of a smoke run, which only shows that it works. It starts what it needs (Spark, Kafka, Redis)
and ends it, also on SIGTERM or when it takes longer than `--limit`. Measurements run one after the
other, because they share a machine and each has its own JVM.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
import traceback
from collections.abc import Sequence
from importlib import import_module

from .. import results
from ..figure import Figure
from . import engine, goals
from .progress import print_progress

# Names of modules in here; imported when they are due: each has its own dependencies.
MEASUREMENTS: Sequence[str] = (
    # one a line
    "enrich",
    "exactly_once",
    "join",
    "latency",
    "restart",
    "sessions",
)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.pipeline", description=__doc__)
    parser.add_argument("--only", action="append", choices=MEASUREMENTS, help="may be repeated")
    parser.add_argument("--note", default="", help="kept with the result: what else ran meanwhile")
    parser.add_argument("--dry", action="store_true", help="print, keep nothing")
    parser.add_argument("--small", action="store_true", help="a smoke run: as --dry, and tiny")
    parser.add_argument("--limit", type=int, default=900, help="seconds of one (default: 900)")
    asked = parser.parse_args(arguments)
    names = asked.only or list(MEASUREMENTS)
    machine = results.describe_machine(asked.note) | _versions()
    measured = {
        name: figures
        for name in names
        if (figures := _run_measurement(name, asked.small, asked.limit))
    }
    machine |= results.get_load("after")
    print(results.render_table(machine, measured, goals.judge_figure))
    if measured and not asked.dry and not asked.small:
        print_progress(
            f"kept in {results.save_figures(machine, measured, format_goal=goals.judge_figure)}"
        )
    return 0 if len(measured) == len(names) else 1


def _run_measurement(name: str, is_small: bool, timeout_s: int) -> list[Figure]:
    began = time.monotonic()
    print_progress(f"{name} ...")
    signal.alarm(timeout_s)
    try:
        module = import_module(f"{__package__}.{name}")
        figures: list[Figure] = module.measure(module.SMALL) if is_small else module.measure()
    except Exception:
        traceback.print_exc()
        print_progress(f"{name} failed after {time.monotonic() - began:.0f} s")
        return []
    finally:
        signal.alarm(0)
        engine.stop_jvm()
    for lacking in () if is_small else goals.find_missing(name, figures):
        print_progress(f"  no figure for the goal {lacking!r}")
    for figure in figures:
        goal = goals.judge_figure(name, figure)
        value = f"{results.format_number(figure.value)} {figure.unit}"
        print_progress(f"  {figure.what}: {value}" + f" ({goal})" * bool(goal))
    print_progress(f"{name} took {time.monotonic() - began:.0f} s")
    return figures


def _versions() -> dict[str, str]:
    from gateway.pipeline.spark import spark_home
    from gateway.pipeline.spark.spark_home import SPARK_VERSION

    return {"spark": SPARK_VERSION, "java": spark_home.find_java().banner.splitlines()[0]}


def _on_terminate(number: int, _: object) -> None:
    """What was started is ended on the way out, which it is not by a signal's own way."""
    raise SystemExit(128 + number)


def _on_alarm(*_: object) -> None:
    raise TimeoutError("it has taken longer than --limit")


if __name__ == "__main__":
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    signal.signal(signal.SIGTERM, _on_terminate)
    signal.signal(signal.SIGALRM, _on_alarm)
    sys.exit(main())
