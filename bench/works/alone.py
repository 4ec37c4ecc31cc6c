"""Run a measurement of this gateway alone as a work.

Such a measurement is a module of `bench` with `measure(kafka, size) -> list[Figure]`. It starts the
gateway itself, as often and behind what it likes.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeAlias

from ..figure import Figure
from ..kafka import Kafka
from ..peers.peer import Peer
from .work import Cell, Row

Measurement: TypeAlias = Callable[[Kafka], Awaitable[list[Figure]]]


async def run(kafka: Kafka, _: Peer, measure: Measurement) -> Cell:
    cell = Cell()
    for figure in await measure(kafka):
        # A column for each unit: the figures of a measurement are of many kinds.
        case, value = figure.what, figure.value
        cell.rows.append(Row(case, figure.unit, value, "", value, value, figure.n))
    cell.add_note("gateway, clients and broker shared all cores")
    return cell
