"""`python -m bench.pipeline`: measure Spark's jobs, print a table, keep the result.

Each measurement is a module of this package with `measure() -> list[Figure]`; it starts what it
needs (Spark, Kafka, Redis) and ends it. One after the other: they share a machine, and a JVM that
is warm by one is not another's.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
import traceback
from collections.abc import Sequence
from importlib import import_module

from .. import results
from ..figure import Figure

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
    asked = parser.parse_args(arguments)
    names = asked.only or list(MEASUREMENTS)
    machine = results.machine(asked.note) | _versions()
    measured = {name: figures for name in names if (figures := _measured(name))}
    machine |= results.load("after")
    print(results.table(machine, measured))
    if measured and not asked.dry:
        _tell(f"kept in {results.keep(machine, measured)}")
    return 0 if len(measured) == len(names) else 1


def _measured(name: str) -> list[Figure]:
    began = time.monotonic()
    _tell(f"{name} ...")
    try:
        figures: list[Figure] = import_module(f"{__package__}.{name}").measure()
    except Exception:
        traceback.print_exc()
        _tell(f"{name} failed after {time.monotonic() - began:.0f} s")
        return []
    for figure in figures:
        _tell(f"  {figure.what}: {results.rounded(figure.value)} {figure.unit}")
    _tell(f"{name} took {time.monotonic() - began:.0f} s")
    return figures


def _versions() -> dict[str, str]:
    from gateway.pipeline import java
    from gateway.pipeline.versions import SPARK

    return {"spark": SPARK, "java": java.found().banner.splitlines()[0]}


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    sys.exit(main())
