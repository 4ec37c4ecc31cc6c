"""Run a measurement of `bench.pipeline`, which blocks, and has a JVM of its own."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from importlib import import_module

from ..peers.peer import Participant
from ..results import Cell


@dataclass(frozen=True)
class Size:
    """measurement: the module. is_small: a smoke run, which only shows that it works."""

    measurement: str
    is_small: bool = False


def run(_: object, __: Participant, size: Size) -> Cell:
    from gateway.pipeline.spark import spark_home

    from ..pipeline import engine

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    cell = Cell()
    module = import_module(f"bench.pipeline.{size.measurement}")
    try:
        module.measure(cell, module.SMALL if size.is_small else module.Workload())
    finally:
        engine.stop_jvm()
    java = spark_home.find_java().banner.splitlines()[0]
    cell.add_note(f"Spark {spark_home.SPARK_VERSION}, {java}")
    return cell
