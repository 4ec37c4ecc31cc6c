"""Look up rows of a large table in Redis, in the tasks that need them.

Spark passes only the keys of a batch to Python, and gets the JSON of their rows back, which the JVM
parses. The other columns stay in the JVM: an Arrow UDF took 7.9 us of CPU per event and
`mapInArrow` 9.6, including the parsing by the JVM (800,000 events, all different). Each key of a
batch is looked up once.

A Python worker keeps its connection and its cache across batches and jobs. The counters of a task
are added to those of the driver when the task ends (`stats`).
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

from gateway.errors import PipelineError, PipelineUnavailable

from .cache import BatchRequest, LookupCache, LookupStats, OutageBackoff
from .redis import RedisConfig, RedisTable, RedisUnavailable, decode_texts, is_utf8

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from gateway.config.sections import pipelines as config


Fallback: TypeAlias = Callable[[list[str]], Mapping[str, Any]]
RedisFactory: TypeAlias = Callable[[RedisConfig], RedisTable]


@dataclass(frozen=True, slots=True)
class LookupConfig:
    """The settings of a table for Spark's workers, without pydantic.

    Attributes:
        staleness: How old a value may be, in seconds.
        negative: How long a key without a value is cached, in seconds.
        fallback: `module:function` that is called for keys that Redis does not have, if any.
    """

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
    """A table in Redis with the cache of one worker process.

    `look_up_keys` creates one for each `LookupConfig` and keeps it. It is only used by one thread.
    """

    def __init__(
        self,
        config: LookupConfig,
        *,
        create_redis: RedisFactory = RedisTable,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Prepare the table; Redis is only contacted when the first key is looked up."""
        self._redis = create_redis(config.server)
        self._fallback = None if config.fallback is None else import_fallback(config.fallback)
        self._cache = LookupCache(config.cache, config.staleness, config.negative)
        self._clock = clock
        name = f"Redis at {config.server.display_url}"
        self._outage_backoff = OutageBackoff(name, clock=clock, sleep=sleep)

    def get_values(self, keys: Sequence[str]) -> list[bytes | None]:
        """Return the JSON of distinct keys, None for those that have no row.

        While Redis does not answer, this method waits, or calls the fallback if there is one. It
        never uses a value that is too old.

        Raises:
            PipelineError: Redis refuses, so that waiting is useless.
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
                requested_at = self._clock()
                request.start_round(requested_at)
                self._cache.store_values(
                    request.keys_to_fetch, self._call_fallback(request.keys_to_fetch), requested_at
                )
            request.finish_round(self._clock())
        values = self._cache.get_values(keys)
        self._cache.evict_excess()
        return values

    def take_stats(self, rows: int = 0) -> LookupStats:
        """Return the counters since the last call, with the caller's number of rows, and reset."""
        counted, self._cache.stats = self._cache.stats, LookupStats()
        return replace(counted, rows=rows)

    def _fetch_values(self, keys: Sequence[str]) -> None:
        """Store values of Redis or the fallback; some are stored even if Redis stops answering."""
        stats = self._cache.stats
        for chunk, values, requested_at in self._redis.fetch_values(keys):
            stats.answered_keys += len(chunk)
            missing = [key for key, value in zip(chunk, values, strict=True) if value is None]
            stats.missing_keys += len(missing)
            self._cache.store_values(chunk, values, requested_at)
            if missing and self._fallback is not None:
                self._cache.store_values(missing, self._call_fallback(missing), requested_at)
        self._outage_backoff.reset()

    def _call_fallback(self, keys: list[str]) -> list[bytes | None]:
        """Return the fallback's values of keys. It does not get keys that are not UTF-8."""
        assert self._fallback is not None
        try:
            values = self._fallback([key for key in keys if is_utf8(key)])
        except Exception as error:  # whatever it raises while its database is away
            problem = f"{type(error).__name__}: {error}"
            raise PipelineUnavailable(f"the fallback has failed: {problem}") from error
        self._cache.stats.fallback_keys += sum(values.get(key) is not None for key in keys)
        return [_encode_json(values.get(key)) for key in keys]


def import_fallback(name: str) -> Fallback:
    module, _, function = name.partition(":")
    try:
        fallback: Fallback = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError, ValueError) as error:
        problem = f"the fallback {name!r} cannot be imported: {error}"
        raise PipelineError(f"{problem}; put its module on the workers' PYTHONPATH") from error
    return fallback


_tables_by_config: dict[LookupConfig, LookupTable] = {}  # in a worker
_stats_by_job: dict[str, Any] = {}  # in the driver: accumulators of `LookupStats`


def create_lookup_function(
    config: LookupConfig, job: str, spark: SparkSession
) -> Callable[..., Any]:
    """Return a function of Spark from a column of keys to one of JSON, null without a row."""
    import pyarrow as pa
    from pyspark.sql import functions as F

    accumulator = _stats_by_job[job] = _create_accumulator(spark)

    def look_up(batches: Iterator[pa.Array]) -> Iterator[pa.Array]:
        for keys in batches:
            yield look_up_keys(config, keys, accumulator.add)

    # Spark reads the kind of UDF from the annotations, which are strings in this module.
    arrays: Any = Iterator[pa.Array]
    look_up.__annotations__ = {"batches": arrays, "return": arrays}
    # If it were deterministic, Spark might evaluate it for every column that is made of its result.
    udf: Any = F.arrow_udf(look_up, "binary")  # type: ignore[attr-defined]
    function: Callable[..., Any] = udf.asNondeterministic()
    return function


def look_up_keys(
    config: LookupConfig, keys: pa.Array, add_stats: Callable[[LookupStats], None]
) -> pa.Array:
    """Return the JSON of each key in the order of the keys, in a worker.

    Keys may repeat and may be null. The process keeps one table for each `config`.
    """
    import pyarrow as pa

    table = _tables_by_config.get(config)
    if table is None:
        table = _tables_by_config[config] = LookupTable(config)
    # The dictionary has each key once and no null. A null index gives a null value.
    encoded = keys.dictionary_encode()
    values = table.get_values(decode_texts(encoded.dictionary))
    add_stats(table.take_stats(len(keys) - keys.null_count))
    return pa.array(values, pa.binary()).take(encoded.indices)


def stats() -> dict[str, LookupStats]:
    """Return the counters of each job of this driver that looks up keys.

    A task that was repeated after a failure may be counted twice.
    """
    return {job: accumulator.value for job, accumulator in _stats_by_job.items()}


def _create_accumulator(spark: SparkSession) -> Any:
    from pyspark.accumulators import AccumulatorParam

    class StatsAccumulatorParam(AccumulatorParam[LookupStats]):  # type: ignore[misc, unused-ignore]
        def zero(self, value: LookupStats) -> LookupStats:
            return LookupStats()

        def addInPlace(self, value1: LookupStats, value2: LookupStats) -> LookupStats:
            return value1 + value2

    return spark.sparkContext.accumulator(LookupStats(), StatsAccumulatorParam())


def _encode_json(value: Any) -> bytes | None:
    """Return a value of the fallback as JSON: texts and bytes are JSON already."""
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode()
    import orjson

    return orjson.dumps(value)


_PARSED_COLUMN = "_parsed"


def parse_json_column(rows: DataFrame, column: str, fields: Mapping[str, str]) -> DataFrame:
    """Replace a column of JSON objects by a column for each field.

    All fields are null if the JSON is null or invalid. A field that is not of its type or is out of
    its range is null on its own.
    """
    from pyspark.sql import functions as F

    # Not at the top, because it brings pydantic: workers import this module in 0.1 s, not 0.8 s.
    from gateway.pipeline.inputs import parsing

    others = [F.col(f"`{name}`") for name in rows.columns if name != column]
    text, parsed = F.col(column).cast("string"), F.col(_PARSED_COLUMN)
    parsed_rows = rows.withColumn(_PARSED_COLUMN, parsing.parse_json(text, fields))
    values = (
        parsing.get_valid_column(parsed, text, name, type_text).alias(name)
        for name, type_text in fields.items()
    )
    return parsed_rows.select(*others, *values)
