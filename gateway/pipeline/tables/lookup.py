"""Look up rows of a large table in Redis, in the tasks that need them.

Spark passes only the keys of a batch to Python, and gets the JSON of their rows back, which the JVM
parses. The other columns stay in the JVM: an Arrow UDF took 7.9 us of CPU per event and
`mapInArrow` 9.6, including the parsing by the JVM (800,000 events, all different). Each key of a
batch is looked up once.

A Python worker keeps its connection and its cache across batches and jobs. The counters of a task
are added to those of the driver when the task ends (`stats`).

The cache has the most recently used values, none too old. The age of a value counts from when it
was *requested*: it was correct at some moment after that. A value older than `staleness` is never
used, but fetched again. Nothing is evicted while a batch is answered (`evict_excess` does it at the
end). Otherwise, if a batch has more keys than `size`, some rows would be lost. `LookupCache` and
`BatchRequest` do no I/O: callers pass the time, in seconds of any monotonic clock.
"""

from __future__ import annotations

import importlib
import logging
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import InitVar, dataclass, field, fields, replace
from functools import cache
from itertools import islice, repeat
from typing import TYPE_CHECKING, Any, TypeAlias

from gateway.core.log.recovery import Backoff, Cause
from gateway.errors import PipelineError, PipelineUnavailable
from gateway.pipeline.spark import F

from .redis import (
    RedisConfig,
    RedisTable,
    RedisUnavailable,
    decode_texts,
    is_utf8,
)

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
        for chunk, values, requested_at in self._redis.fetch_values(keys):
            missing = [key for key, value in zip(chunk, values, strict=True) if value is None]
            self._cache.stats.missing_keys += len(missing)
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
        return [_encode_json(values.get(key)) for key in keys]


def import_fallback(name: str) -> Fallback:
    module, _, function = name.partition(":")
    try:
        fallback: Fallback = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError, ValueError) as error:
        problem = f"the fallback {name!r} cannot be imported: {error}"
        raise PipelineError(f"{problem}; put its module on the workers' PYTHONPATH") from error
    return fallback


_stats_by_job: dict[str, Any] = {}  # in the driver: accumulators of `LookupStats`


def create_lookup_function(
    config: LookupConfig, job: str, spark: SparkSession
) -> Callable[..., Any]:
    """Return a function of Spark from a column of keys to one of JSON, null without a row."""
    import pyarrow as pa

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


@cache
def _get_table(config: LookupConfig) -> LookupTable:
    """Return the table that this worker process keeps."""
    return LookupTable(config)


def look_up_keys(
    config: LookupConfig, keys: pa.Array, add_stats: Callable[[LookupStats], None]
) -> pa.Array:
    """Return the JSON of each key in the order of the keys, in a worker.

    Keys may repeat and may be null.
    """
    import pyarrow as pa

    table = _get_table(config)
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


log = logging.getLogger(__name__)

# A value (None if the key has none), and when it was requested.
_TimedValue: TypeAlias = tuple[bytes | None, float]


@dataclass(slots=True)
class LookupStats:
    """Counters of lookups, summed over batches. Keys are the distinct keys of each batch.

    Attributes:
        hits: Keys that the cache answered, including keys that are known to have no value.
    """

    rows: int = 0
    keys: int = 0
    hits: int = 0
    missing_keys: int = 0

    def __add__(self, other: LookupStats) -> LookupStats:
        names = (counter.name for counter in fields(self))
        return LookupStats(*(getattr(self, name) + getattr(other, name) for name in names))

    @property
    def hit_rate(self) -> float:
        """Return the share of rows that needed no request of their own, from 0 to 1.

        Their key was in the cache, or another row of the same batch has it, too.
        """
        return 1.0 - (self.keys - self.hits) / self.rows if self.rows else 0.0


@dataclass(slots=True)
class LookupCache:
    """A cache of values by key, with the least recently used first.

    Each `LookupTable` owns one. Between batches it has at most `size` keys.

    Attributes:
        staleness: How long a value may be used after it was requested, in seconds.
        negative: How long a key without a value is cached, in seconds; at most `staleness` counts.
    """

    size: int
    staleness: float
    negative: float
    stats: LookupStats = field(default_factory=LookupStats)
    # A dictionary keeps the order of insertion, and `get_values` inserts every key again.
    _entries: dict[str, _TimedValue] = field(default_factory=dict)

    def find_keys_to_fetch(
        self, keys: Sequence[str], now: float, requested_since: float
    ) -> list[str]:
        """Return those of some distinct keys that must be fetched before a batch can be answered.

        Args:
            requested_since: When the latest round of requests for this batch began. A value that
                was requested since then is as new as possible, and is used even if the answer took
                longer than `staleness`.
        """
        oldest = min(requested_since, now - self.staleness)
        oldest_none = min(requested_since, now - min(self.negative, self.staleness))
        get = self._entries.get  # a local name, because this loop runs for every key
        return [
            key
            for key in keys
            if (entry := get(key)) is None
            or entry[1] < (oldest if entry[0] is not None else oldest_none)
        ]

    def store_values(
        self, keys: Sequence[str], values: Sequence[bytes | None], requested_at: float
    ) -> None:
        """Store the table's answer to a request, in which None is a key without a row."""
        self._entries.update(zip(keys, zip(values, repeat(requested_at)), strict=True))

    def get_values(self, keys: Sequence[str]) -> list[bytes | None]:
        """Return the values of distinct cached keys, which become the most recently used."""
        entries = self._entries
        pop = entries.pop
        values = []
        for key in keys:
            entry = entries[key] = pop(key)
            values.append(entry[0])
        return values

    def evict_excess(self) -> None:
        for key in list(islice(self._entries, max(0, len(self._entries) - self.size))):
            del self._entries[key]

    def __len__(self) -> int:
        return len(self._entries)


@dataclass(slots=True)
class BatchRequest:
    """The rounds of requests that fetch the values of one batch's keys.

    `LookupTable` creates one for each batch. It calls `start_round`, fetches all of
    `keys_to_fetch`, and calls `finish_round` or `fail_round`, until `keys_to_fetch` is empty. Then
    `LookupCache.get_values` may be called.

    The second round fetches values that became too old during the first. If some became too old
    even during the second, the third round fetches all keys at once. Otherwise, if `staleness` is
    shorter than a round takes, the values would never all be fresh.
    """

    cache: LookupCache
    keys: Sequence[str]
    now: InitVar[float]
    keys_to_fetch: list[str] = field(init=False)
    _round_started_at: float = field(init=False)
    _round_count: int = 0

    def __post_init__(self, now: float) -> None:
        self.keys_to_fetch = self.cache.find_keys_to_fetch(self.keys, now, requested_since=now)
        self.cache.stats.keys += len(self.keys)
        self.cache.stats.hits += len(self.keys) - len(self.keys_to_fetch)

    def start_round(self, now: float) -> None:
        self._round_started_at = now

    def finish_round(self, now: float) -> None:
        """Record that all keys of a round were stored.

        If no round fails in between, the third one is the last.
        """
        self._round_count += 1
        # If the round fetched all keys, all values are as new as possible. Not to look them up
        # saves a sixth of the cache's time.
        if len(self.keys_to_fetch) == len(self.keys):
            self.keys_to_fetch = []
            return
        self.keys_to_fetch = self.cache.find_keys_to_fetch(self.keys, now, self._round_started_at)
        if self.keys_to_fetch and self._round_count > 1:
            self.keys_to_fetch = list(self.keys)

    def fail_round(self, now: float) -> None:
        """Record that a round failed. The values that it did fetch have the usual age limit."""
        self.keys_to_fetch = self.cache.find_keys_to_fetch(self.keys, now, requested_since=now)
        self._round_count = 0


MAX_RETRY_DELAY_S = 2.0  # seconds, to which the delays grow


class OutageBackoff:
    """The delays between requests to a server that does not answer, and the log lines about it.

    Each `LookupTable` and each loader of a table has one. An outage is logged when the second
    request in a row has failed, and when the server answers again.
    """

    def __init__(
        self,
        display_name: str,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._display_name, self._clock, self._sleep = display_name, clock, sleep
        self._backoff = Backoff(max_delay=MAX_RETRY_DELAY_S, random=random.random)
        self._started_at = 0.0

    @property
    def is_outage(self) -> bool:
        """Return whether the server has failed more than once.

        A single failure may just be an idle connection that the server has closed.
        """
        return self._backoff.attempts >= 2

    def wait_for_retry(self, error: Exception, consequence: str) -> None:
        """Wait before a request is repeated. The log gets the consequence of an outage."""
        if self._backoff.attempts == 0:
            self._started_at = self._clock()
        delay = self._backoff.next_delay(Cause.CONNECTION)
        if self._backoff.attempts == 2:
            log.warning("%s is away (%s); %s", self._display_name, error, consequence)
        self._sleep(delay)

    def reset(self) -> None:
        if self.is_outage:
            log.warning(
                "%s answers again, after %.1f s",
                self._display_name,
                self._clock() - self._started_at,
            )
        self._backoff.reset()
