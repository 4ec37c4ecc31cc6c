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

from .cache import BatchRequest, LookupCache, LookupStats
from .outage import OutageBackoff
from .redis import RedisConfig, RedisTable, RedisUnavailable, decode_texts, is_utf8

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

    from gateway.config.sections import pipelines as config

Fallback: TypeAlias = Callable[[list[str]], Mapping[str, Any]]
RedisFactory: TypeAlias = Callable[[RedisConfig], RedisTable]


@dataclass(frozen=True, slots=True)
class LookupConfig:
    """What a worker is told."""

    server: RedisConfig
    cache: int
    staleness: float
    negative: float
    fallback: str | None = None

    @classmethod
    def from_settings(cls, settings: config.Redis) -> LookupConfig:
        return cls(
            RedisConfig.from_settings(settings),
            settings.cache,
            settings.staleness,
            settings.negative,
            settings.fallback,
        )


class LookupTable:
    """A table as one worker sees it."""

    def __init__(
        self,
        config: LookupConfig,
        *,
        create_redis: RedisFactory = RedisTable,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._redis = create_redis(config.server)
        self._fallback = None if config.fallback is None else import_fallback(config.fallback)
        self._cache = LookupCache(config.cache, config.staleness, config.negative)
        self._clock = clock
        name = f"Redis at {config.server.display_url}"
        self._outage_backoff = OutageBackoff(name, clock=clock, sleep=sleep)

    def get_values(self, keys: Sequence[str]) -> list[bytes | None]:
        """The JSON of different keys; None where there is none.

        While Redis is away it waits, or asks the fallback if there is one: a value beyond its
        bound is never used. Raises PipelineError where waiting is of no use.
        """
        request = BatchRequest(self._cache, keys, self._clock())
        while request.keys_to_fetch:
            request.start_round(self._clock())
            try:
                self._fetch_values(request.keys_to_fetch)
            except RedisUnavailable as error:
                request.fail_round(self._clock())
                if self._fallback is None or not self._outage_backoff.is_outage:
                    self._outage_backoff.wait_for_retry(error, "the batch waits")
                    continue
                asked = self._clock()
                request.start_round(asked)
                self._cache.store_values(
                    request.keys_to_fetch, self._call_fallback(request.keys_to_fetch), asked
                )
            request.finish_round(self._clock())
        values = self._cache.get_values(keys)
        self._cache.evict_excess()
        return values

    def take_stats(self, rows: int = 0) -> LookupStats:
        """What was counted since the last time, and so many rows."""
        counted, self._cache.stats = self._cache.stats, LookupStats()
        return replace(counted, rows=rows)

    def _fetch_values(self, keys: Sequence[str]) -> None:
        stats = self._cache.stats
        for chunk, values, asked in self._redis.fetch_values(keys):
            stats.answered_keys += len(chunk)
            lacking = [key for key, value in zip(chunk, values, strict=True) if value is None]
            stats.missing_keys += len(lacking)
            self._cache.store_values(chunk, values, asked)
            if lacking and self._fallback is not None:
                self._cache.store_values(lacking, self._call_fallback(lacking), asked)
        self._outage_backoff.reset()

    def _call_fallback(self, keys: list[str]) -> list[bytes | None]:
        """What the fallback says of them; it is not asked for keys that are no UTF-8."""
        assert self._fallback is not None
        found = self._fallback([key for key in keys if is_utf8(key)])
        self._cache.stats.fallback_keys += sum(found.get(key) is not None for key in keys)
        return [_encode_json(found.get(key)) for key in keys]


def import_fallback(name: str) -> Fallback:
    """The function `module:function`. Raises PipelineError."""
    module, _, function = name.partition(":")
    try:
        found: Fallback = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError, ValueError) as error:
        what = f"the fallback {name!r} cannot be imported: {error}"
        raise PipelineError(f"{what}; put its module on the workers' PYTHONPATH") from error
    return found


_tables_by_config: dict[LookupConfig, LookupTable] = {}
_stats_by_job: dict[str, Any] = {}


def create_lookup_function(
    config: LookupConfig, job: str, spark: SparkSession
) -> Callable[..., Any]:
    """A function from a column of keys to one of JSON, as bytes; null where there is none."""
    import pyarrow as pa
    from pyspark.sql import functions as F

    counted = _stats_by_job[job] = _create_accumulator(spark)

    def look_up(batches: Iterator[pa.Array]) -> Iterator[pa.Array]:
        for keys in batches:
            yield look_up_keys(config, keys, counted.add)

    arrays: Any = Iterator[pa.Array]
    look_up.__annotations__ = {"batches": arrays, "return": arrays}  # Spark reads which kind
    # Not deterministic, else Spark may evaluate it again for each column taken out of it.
    found: Any = F.arrow_udf(look_up, "binary")  # type: ignore[attr-defined]
    asked: Callable[..., Any] = found.asNondeterministic()
    return asked


def look_up_keys(
    config: LookupConfig, keys: pa.Array, add_stats: Callable[[LookupStats], None]
) -> pa.Array:
    """The JSON of each key, in their order. In a worker."""
    import pyarrow as pa

    table = _tables_by_config.get(config)
    if table is None:
        table = _tables_by_config[config] = LookupTable(config)
    coded = keys.dictionary_encode()
    values = table.get_values(decode_texts(coded.dictionary))
    add_stats(table.take_stats(len(keys) - keys.null_count))
    return pa.array(values, pa.binary()).take(coded.indices)


def stats() -> dict[str, LookupStats]:
    """Of each job of this driver that looks up: what its tasks counted, those that were repeated
    after a failure twice."""
    return {job: counted.value for job, counted in _stats_by_job.items()}


def _create_accumulator(spark: SparkSession) -> Any:
    from pyspark.accumulators import AccumulatorParam

    class StatsAccumulatorParam(AccumulatorParam[LookupStats]):  # type: ignore[misc, unused-ignore]
        def zero(self, value: LookupStats) -> LookupStats:
            return LookupStats()

        def addInPlace(self, value1: LookupStats, value2: LookupStats) -> LookupStats:
            return value1 + value2

    return spark.sparkContext.accumulator(LookupStats(), StatsAccumulatorParam())


def _encode_json(value: Any) -> bytes | None:
    """As the table has it: text and bytes are JSON already."""
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode()
    import orjson

    return orjson.dumps(value)
