"""Measure the gateway alone, print a table and keep the result: `python -m bench.figures`.

Progress is printed to stderr, the table to stdout. If a measurement fails, the failure is printed,
the others are kept, and the exit status is 1.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
import traceback
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import TypeAlias

from . import (
    backoff,
    begin,
    codec,
    failover,
    fanout,
    latency,
    rebalance,
    results,
    resume,
    retention,
    slow,
)
from .figure import Figure
from .kafka import RealKafka, real_kafka

Measurement: TypeAlias = Callable[[RealKafka], Awaitable[list[Figure]]]

# On how many brokers each is measured.
MEASUREMENTS: Mapping[str, tuple[int, Measurement]] = {
    "codec": (1, codec.measure),
    "begin": (1, begin.measure),
    "begin-leaderless": (3, begin.measure_leaderless),
    "latency": (1, latency.measure),
    "fanout": (1, fanout.measure),
    "slow": (1, slow.measure),
    "resume": (1, resume.measure),
    "retention": (1, retention.measure),
    "retention-storm": (1, partial(retention.measure, size=retention.STORM)),
    "backoff": (1, backoff.measure),
    "rebalance": (1, rebalance.measure),
    "failover": (3, failover.measure),
}
# These take so long that they are measured only if they are asked for.
LONG_MEASUREMENTS = frozenset({"retention-storm"})


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.figures", description=__doc__)
    parser.add_argument("--only", action="append", choices=MEASUREMENTS, help="may be repeated")
    parser.add_argument("--note", default="", help="kept with the result: what else ran meanwhile")
    parser.add_argument("--dry", action="store_true", help="print, keep nothing")
    asked = parser.parse_args(arguments)
    names = asked.only or [name for name in MEASUREMENTS if name not in LONG_MEASUREMENTS]
    machine = results.describe_machine(asked.note)
    measured = run_measurements(names)
    machine |= results.get_load("after")
    print(results.render_table(machine, measured))
    if measured and not asked.dry:
        _print_progress(f"kept in {results.save_figures(machine, measured)}")
    return 0 if len(measured) == len(names) else 1


def run_measurements(names: Sequence[str]) -> dict[str, list[Figure]]:
    """The figures of each measurement that succeeded; one set of brokers at a time."""
    measured: dict[str, list[Figure]] = {}
    for nodes in (1, 3):
        due = [name for name in MEASUREMENTS if name in names and MEASUREMENTS[name][0] == nodes]
        with ExitStack() as stack:
            if due:
                _print_progress(f"starting Kafka, {nodes} node{'s' * (nodes > 1)}")
                kafka = stack.enter_context(real_kafka(nodes))
            for name in due:
                figures = _run_measurement(name, kafka)
                if figures:
                    measured[name] = figures
    return measured


def _run_measurement(name: str, kafka: RealKafka) -> list[Figure]:
    began = time.monotonic()
    _print_progress(f"{name} ...")
    try:
        figures = asyncio.run(_call_measurement(name, kafka))
    except Exception:
        traceback.print_exc()
        _print_progress(f"{name} failed after {time.monotonic() - began:.0f} s")
        return []
    finally:
        kafka.delete_topics()
    for figure in figures:
        _print_progress(f"  {figure.what}: {results.format_number(figure.value)} {figure.unit}")
    _print_progress(f"{name} took {time.monotonic() - began:.0f} s")
    return figures


async def _call_measurement(name: str, kafka: RealKafka) -> list[Figure]:
    return await MEASUREMENTS[name][1](kafka)


def _print_progress(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
