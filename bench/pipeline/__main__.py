"""`python -m bench.pipeline`: measure Spark's jobs, print a table, keep the result.

Each measurement is a module of this package with `measure(size) -> list[Figure]`, and `SMALL`, the
size of a smoke run, which shows that it works and no more. It starts what it needs (Spark, Kafka,
Redis) and ends it, also when it is told to end or takes longer than `--limit`. One after the
other: they share a machine, and each has a JVM of its own.
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
from .telling import tell

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
    machine = results.machine(asked.note) | _versions()
    measured = {
        name: figures for name in names if (figures := _measured(name, asked.small, asked.limit))
    }
    machine |= results.load("after")
    print(results.table(machine, measured, goals.judged))
    if measured and not asked.dry and not asked.small:
        tell(f"kept in {results.keep(machine, measured, judged=goals.judged)}")
    return 0 if len(measured) == len(names) else 1


def _measured(name: str, small: bool, limit: int) -> list[Figure]:
    began = time.monotonic()
    tell(f"{name} ...")
    signal.alarm(limit)
    try:
        module = import_module(f"{__package__}.{name}")
        figures: list[Figure] = module.measure(module.SMALL) if small else module.measure()
    except Exception:
        traceback.print_exc()
        tell(f"{name} failed after {time.monotonic() - began:.0f} s")
        return []
    finally:
        signal.alarm(0)
        engine.end()
    for lacking in () if small else goals.lacking(name, figures):
        tell(f"  no figure for the goal {lacking!r}")
    for figure in figures:
        goal = goals.judged(name, figure)
        value = f"{results.rounded(figure.value)} {figure.unit}"
        tell(f"  {figure.what}: {value}" + f" ({goal})" * bool(goal))
    tell(f"{name} took {time.monotonic() - began:.0f} s")
    return figures


def _versions() -> dict[str, str]:
    from gateway.pipeline.spark import java
    from gateway.pipeline.spark.versions import SPARK

    return {"spark": SPARK, "java": java.found().banner.splitlines()[0]}


def _ends(number: int, _: object) -> None:
    """What was started is ended on the way out, which it is not by a signal's own way."""
    raise SystemExit(128 + number)


def _late(*_: object) -> None:
    raise TimeoutError("it has taken longer than --limit")


if __name__ == "__main__":
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    signal.signal(signal.SIGTERM, _ends)
    signal.signal(signal.SIGALRM, _late)
    sys.exit(main())
