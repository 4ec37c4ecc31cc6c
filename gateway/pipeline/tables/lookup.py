"""Rows of a large table, looked up by the tasks that need them.

Spark hands over the keys of a batch alone and gets back the JSON of their rows, which the JVM
parses. The other columns stay there: an Arrow UDF took 7.9 us of CPU an event where `mapInArrow`
took 9.6, the JVM's parsing included (800,000 events, all different). Of a batch each key is looked
up once.

A Python worker keeps its connection and its cache as long as Spark keeps the worker, across
batches and jobs. What it counted comes back with each task's end: `stats`.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

from gateway.errors import PipelineError

from .cache import Cache, Request, Stats
from .redis import Away, Redis, Server, is_text, texts
from .waiting import Waiting

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

    from gateway.config.sections import pipelines as config

Fallback: TypeAlias = Callable[[list[str]], Mapping[str, Any]]
Source: TypeAlias = Callable[[Server], Redis]


@dataclass(frozen=True, slots=True)
class Lookup:
    """What a worker is told."""

    server: Server
    cache: int
    staleness: float
    negative: float
    fallback: str | None = None

    @classmethod
    def of(cls, settings: config.Redis) -> Lookup:
        return cls(
            Server.of(settings),
            settings.cache,
            settings.staleness,
            settings.negative,
            settings.fallback,
        )


class Table:
    """A table as one worker sees it."""

    def __init__(
        self,
        lookup: Lookup,
        *,
        source: Source = Redis,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._redis = source(lookup.server)
        self._fallback = None if lookup.fallback is None else imported(lookup.fallback)
        self._cache = Cache(lookup.cache, lookup.staleness, lookup.negative)
        self._clock = clock
        name = f"Redis at {lookup.server.shown}"
        self._waiting = Waiting(name, clock=clock, sleep=sleep)

    def values(self, keys: Sequence[str]) -> list[bytes | None]:
        """The JSON of different keys; None where there is none.

        While Redis is away it waits, or asks the fallback if there is one: a value beyond its
        bound is never used. Raises PipelineError where waiting is of no use.
        """
        request = Request(self._cache, keys, self._clock())
        while request.ask:
            request.begun(self._clock())
            try:
                self._fetch(request.ask)
            except Away as error:
                request.failed(self._clock())
                if self._fallback is None or not self._waiting.long:
                    self._waiting.failed(error, "the batch waits")
                    continue
                asked = self._clock()
                request.begun(asked)
                self._cache.put(request.ask, self._fallen(request.ask), asked)
            request.over(self._clock())
        values = self._cache.answer(keys)
        self._cache.trim()
        return values

    def drained(self, rows: int = 0) -> Stats:
        """What was counted since the last time, and so many rows."""
        counted, self._cache.stats = self._cache.stats, Stats()
        return replace(counted, rows=rows)

    def _fetch(self, keys: Sequence[str]) -> None:
        stats = self._cache.stats
        for chunk, values, asked in self._redis.values(keys):
            stats.asked += len(chunk)
            lacking = [key for key, value in zip(chunk, values, strict=True) if value is None]
            stats.missing += len(lacking)
            self._cache.put(chunk, values, asked)
            if lacking and self._fallback is not None:
                self._cache.put(lacking, self._fallen(lacking), asked)
        self._waiting.succeeded()

    def _fallen(self, keys: list[str]) -> list[bytes | None]:
        """What the fallback says of them; it is not asked for keys that are no UTF-8."""
        assert self._fallback is not None
        found = self._fallback([key for key in keys if is_text(key)])
        self._cache.stats.fallback += sum(found.get(key) is not None for key in keys)
        return [_json(found.get(key)) for key in keys]


def imported(name: str) -> Fallback:
    """The function `module:function`. Raises PipelineError."""
    module, _, function = name.partition(":")
    try:
        found: Fallback = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError, ValueError) as error:
        what = f"the fallback {name!r} cannot be imported: {error}"
        raise PipelineError(f"{what}; put its module on the workers' PYTHONPATH") from error
    return found


_tables: dict[Lookup, Table] = {}
_counted: dict[str, Any] = {}


def column(lookup: Lookup, job: str, spark: SparkSession) -> Callable[..., Any]:
    """A function from a column of keys to one of JSON, as bytes; null where there is none."""
    import pyarrow as pa
    from pyspark.sql import functions as F

    counted = _counted[job] = _accumulator(spark)

    def looked_up(batches: Iterator[pa.Array]) -> Iterator[pa.Array]:
        for keys in batches:
            yield taken(lookup, keys, counted.add)

    arrays: Any = Iterator[pa.Array]
    looked_up.__annotations__ = {"batches": arrays, "return": arrays}  # Spark reads which kind
    # Not deterministic, else Spark may evaluate it again for each column taken out of it.
    found: Any = F.arrow_udf(looked_up, "binary")  # type: ignore[attr-defined]
    asked: Callable[..., Any] = found.asNondeterministic()
    return asked


def taken(lookup: Lookup, keys: pa.Array, count: Callable[[Stats], None]) -> pa.Array:
    """The JSON of each key, in their order. In a worker."""
    import pyarrow as pa

    table = _tables.get(lookup)
    if table is None:
        table = _tables[lookup] = Table(lookup)
    coded = keys.dictionary_encode()
    values = table.values(texts(coded.dictionary))
    count(table.drained(len(keys) - keys.null_count))
    return pa.array(values, pa.binary()).take(coded.indices)


def stats() -> dict[str, Stats]:
    """Of each job of this driver that looks up: what its tasks counted, those that were repeated
    after a failure twice."""
    return {job: counted.value for job, counted in _counted.items()}


def _accumulator(spark: SparkSession) -> Any:
    from pyspark.accumulators import AccumulatorParam

    class Summed(AccumulatorParam[Stats]):  # type: ignore[misc, unused-ignore]
        def zero(self, value: Stats) -> Stats:
            return Stats()

        def addInPlace(self, value1: Stats, value2: Stats) -> Stats:
            return value1 + value2

    return spark.sparkContext.accumulator(Stats(), Summed())


def _json(value: Any) -> bytes | None:
    """As the table has it: text and bytes are JSON already."""
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode()
    import orjson

    return orjson.dumps(value)
