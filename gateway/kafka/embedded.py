"""A Kafka inside this process: librdkafka's mock cluster, from the confluent-kafka wheel.

Up in 6 ms with nothing but pip: for `gateway demo` and for tests with injected faults. aiokafka
and librdkafka produce to it, idempotently too, and read from it. What it is and is not,
measured with confluent-kafka 2.16.1:

| request              | versions | notes |
|----------------------|----------|-------|
| Produce              | 0-10     | base offset right, timestamp of the answer always 1234 |
| Fetch                | 0-16     | by name to 12, by topic id from 13; no sessions |
| ListOffsets          | 0-7      | latest, earliest; by timestamp always -1, and no timestamps |
| Metadata             | 0-13     | topic ids from 10; creates no topic unless asked to |
| OffsetForLeaderEpoch | 2        | right, over leader changes too; -1 for an epoch to come |
| ApiVersions          | 0-2      | 3 and 4 get error 35 and the list of 0, as KIP-511 wants |
| CreateTopics, DeleteRecords, DescribeConfigs | none | use the methods below |

Right in Fetch: high watermark, log start, leader epoch in each batch, errors 1 (below the log
start or past the end), 3, 6 with the new leader (16), 74 and 75 (epochs), 100 (id of a deleted
topic). `lead` raises the epoch; deleting and creating a topic gives it a new id. The cluster id
begins with `mockCluster`. Otherwise not as in Kafka:

- The last stable offset is always the high watermark; there are no usable transactions.
- A Fetch with nothing to give, or with an error only, is answered after its whole max wait: what
  is produced meanwhile comes with the *next* one, and later answers of the connection queue up
  behind it. So wait briefly: a record arrives after 5 ms (median) with a max wait of 10 ms, after
  465 ms with 500 ms.
- One batch per partition and Fetch, the whole one the offset lies in.
- About 5 MB and 100,000 batches are kept of a partition; what is older goes without a trace but
  the log start.
- A Fetch of version 12 or above for a partition without a leader **crashes the process** (a null
  pointer of the mock), as does `fail(1, 6)` met by one for an unknown topic. Hence `fetch_version`.
- One member per consumer group; the first join takes 3 s.

Speed, 2 cores, 100 bytes: aiokafka puts in 240,000 records/s and takes out 750,000, librdkafka
puts in 1,200,000.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import importlib.util
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Self

from gateway.errors import LocalBrokerError

_FETCH_API_KEY = 1  # the API key
_PRODUCER_TYPE = 0  # rd_kafka_type_t
_DISCONNECT = -195  # RD_KAFKA_RESP_ERR__TRANSPORT: the mock closes the connection instead


class EmbeddedKafka:
    """A mock cluster; ends with `close` or the context.

    topics:         name -> number of partitions.
    nodes:          brokers, with ids from 1.
    fetch_version:  the highest it offers; 11 or less where a partition is to lose its leader.
    Raises LocalBrokerError when librdkafka is not there or refuses.
    """

    DISCONNECT = _DISCONNECT

    def __init__(
        self,
        topics: Mapping[str, int] | None = None,
        nodes: int = 1,
        *,
        fetch_version: int = 16,
    ) -> None:
        self._fetch_version = fetch_version
        self._library = load_library()
        self._client = _create_client(self._library)
        self._cluster = self._library.rd_kafka_mock_cluster_new(self._client, nodes)
        if not self._cluster:
            self._library.rd_kafka_destroy(self._client)
            raise LocalBrokerError(f"librdkafka made no mock cluster of {nodes} nodes")
        self._call("set_apiversion", _FETCH_API_KEY, 0, fetch_version)
        for name, partitions in (topics or {}).items():
            self.create_topic(name, partitions)

    @property
    def bootstrap(self) -> list[str]:
        """host:port of every broker."""
        servers: bytes = self._library.rd_kafka_mock_cluster_bootstraps(self._get_handle())
        return servers.decode().split(",")

    def create_topic(self, name: str, partitions: int = 1, replication: int = 1) -> None:
        """It can be written at once."""
        self._call("topic_create", name.encode(), partitions, replication)

    def delete_topic(self, name: str) -> None:
        """Created again, it has another id."""
        self._call("topic_delete", name.encode())

    def delete_records(self, topic: str, before: Mapping[int, int]) -> None:
        """Move the log start of each partition to its offset in `before`."""
        for partition, offset in before.items():
            self._call("partition_delete_records", topic.encode(), partition, offset)

    def lead(self, topic: str, partition: int, node: int | None) -> None:
        """Give the partition to a node, or to nobody (None); the leader epoch goes up by one.

        Raises LocalBrokerError for None when `fetch_version` is 12 or more: see the module.
        """
        if node is None and self._fetch_version > 11:
            raise LocalBrokerError(
                f"a Fetch of {topic}-{partition} without a leader would crash this process; "
                "use EmbeddedKafka(..., fetch_version=11)"
            )
        self._call("partition_set_leader", topic.encode(), partition, -1 if node is None else node)

    def fail(self, api: int, *codes: int) -> None:
        """Answer the next requests of an API key, one each, with these error codes of Kafka.

        0 lets one pass; DISCONNECT closes the connection instead of answering.
        """
        array = (ctypes.c_int * len(codes))(*codes)
        self._library.rd_kafka_mock_push_request_errors_array(
            self._get_handle(), api, len(codes), array
        )

    def forgive(self, api: int) -> None:
        """Forget the failures of an API key that were not used up."""
        self._library.rd_kafka_mock_clear_request_errors(self._get_handle(), api)

    def down(self, node: int) -> None:
        """Disconnect everybody from the node and accept nobody; its leaderships stay."""
        self._call("broker_set_down", node)

    def up(self, node: int) -> None:
        """Accept connections again."""
        self._call("broker_set_up", node)

    def delay(self, node: int, seconds: float) -> None:
        """Every answer of the node takes this much longer."""
        self._call("broker_set_rtt", node, round(seconds * 1000))

    def close(self) -> None:
        """End it, with all that it holds."""
        if self._cluster:
            self._library.rd_kafka_mock_cluster_destroy(self._cluster)
            self._library.rd_kafka_destroy(self._client)
            self._cluster = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _get_handle(self) -> int:
        if not self._cluster:
            raise LocalBrokerError("this embedded Kafka is closed")
        return int(self._cluster)

    def _call(self, function: str, *arguments: object) -> None:
        code = getattr(self._library, f"rd_kafka_mock_{function}")(self._get_handle(), *arguments)
        if code:
            reason = self._library.rd_kafka_err2str(code).decode()
            what = " ".join(str(x.decode() if isinstance(x, bytes) else x) for x in arguments)
            raise LocalBrokerError(f"the embedded Kafka refused {function} {what}: {reason}")


def _create_client(library: ctypes.CDLL) -> int:
    """The librdkafka instance whose thread the mock's timers and logs hang on."""
    error = ctypes.create_string_buffer(512)
    conf = library.rd_kafka_conf_new()
    library.rd_kafka_conf_set(conf, b"log_level", b"0", error, len(error))
    client = library.rd_kafka_new(_PRODUCER_TYPE, conf, error, len(error))
    if not client:
        raise LocalBrokerError(f"librdkafka did not start: {error.value.decode()}")
    return int(client)


@cache
def load_library() -> ctypes.CDLL:
    """librdkafka with the signatures used here; the copy that confluent-kafka itself loads."""
    for path in _iter_library_paths():
        loaded = ctypes.CDLL(path)
        if hasattr(loaded, "rd_kafka_mock_cluster_new"):
            return _declare_signatures(loaded)
    raise LocalBrokerError(
        "the embedded Kafka needs librdkafka with its mock cluster; `pip install confluent-kafka`"
    )


def _iter_library_paths() -> Iterator[str]:
    spec = importlib.util.find_spec("confluent_kafka")
    if spec is not None and spec.origin is not None:
        package = Path(spec.origin).parent
        wheels = (package.parent / "confluent_kafka.libs", package / ".dylibs")
        for directory in wheels:  # Linux, macOS
            yield from map(str, sorted(directory.glob("librdkafka*")))
    if found := ctypes.util.find_library("rdkafka"):
        yield found


def _declare_signatures(library: ctypes.CDLL) -> ctypes.CDLL:
    pointer, text, number = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int
    int32, int64, size = ctypes.c_int32, ctypes.c_int64, ctypes.c_size_t
    signatures: dict[str, tuple[type | None, list[type]]] = {
        "conf_new": (pointer, []),
        "conf_set": (number, [pointer, text, text, text, size]),
        "new": (pointer, [number, pointer, text, size]),
        "destroy": (None, [pointer]),
        "err2str": (text, [number]),
        "mock_cluster_new": (pointer, [pointer, number]),
        "mock_cluster_destroy": (None, [pointer]),
        "mock_cluster_bootstraps": (text, [pointer]),
        "mock_topic_create": (number, [pointer, text, number, number]),
        "mock_topic_delete": (number, [pointer, text]),
        "mock_partition_delete_records": (number, [pointer, text, int32, int64]),
        "mock_partition_set_leader": (number, [pointer, text, int32, int32]),
        "mock_push_request_errors_array": (
            None,
            [pointer, ctypes.c_int16, size, ctypes.POINTER(number)],
        ),
        "mock_set_apiversion": (number, [pointer, ctypes.c_int16, ctypes.c_int16, ctypes.c_int16]),
        "mock_clear_request_errors": (None, [pointer, ctypes.c_int16]),
        "mock_broker_set_down": (number, [pointer, int32]),
        "mock_broker_set_up": (number, [pointer, int32]),
        "mock_broker_set_rtt": (number, [pointer, int32, number]),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(library, f"rd_kafka_{name}")
        function.restype, function.argtypes = result, arguments
    return library
