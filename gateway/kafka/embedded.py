"""Run a Kafka inside this process: librdkafka's mock cluster, from the confluent-kafka wheel.

It starts in 6 ms and needs nothing but pip. `gateway demo` uses it, and so do tests that inject
faults. aiokafka and librdkafka can produce to it, also idempotently, and consume from it. Its
requests, as measured with confluent-kafka 2.16.1:

| request              | versions | notes |
|----------------------|----------|-------|
| Produce              | 0-10     | the base offset is right, the timestamp is always 1234 |
| Fetch                | 0-16     | by name to 12, by topic id from 13; no sessions |
| ListOffsets          | 0-7      | latest, earliest; by timestamp always -1, and no timestamps |
| Metadata             | 0-13     | topic ids from 10; creates no topic unless asked to |
| OffsetForLeaderEpoch | 2        | right, also across leader changes; -1 for a future epoch |
| ApiVersions          | 0-2      | 3 and 4 get error 35 and the list of 0, as KIP-511 asks for |
| CreateTopics, DeleteRecords, DescribeConfigs | none | use the methods below |

A Fetch answers with the right high watermark, log start offset and leader epoch of each batch, and
with the right errors: 1 (below the log start or past the end), 3, 6 with the new leader (from
version 16), 74 and 75 (epochs), 100 (the id of a deleted topic). `lead` raises the leader epoch; a
topic that is deleted and created again gets a new id. The cluster id begins with `mockCluster`.
These things differ from Kafka:

- The last stable offset is always the high watermark; transactions cannot be used.
- A Fetch that finds no records, or only an error, is answered after its whole max wait. Records
  produced meanwhile come with the *next* Fetch, and later answers of the connection wait behind it.
  So wait briefly: a record arrives after 5 ms (median) with a max wait of 10 ms, after 465 ms with
  500 ms.
- A Fetch returns one batch of each partition: the whole one that contains the offset.
- A partition keeps about 5 MB and 100,000 batches; only the log start offset shows removals.
- A Fetch of version 12 or above for a partition without a leader **crashes the process** (a null
  pointer in the mock), and so does `fail(1, 6)` when the Fetch it applies to names an unknown
  topic. `fetch_version` exists for that reason.
- A consumer group has one member; its first join takes 3 s.

With 2 cores and records of 100 bytes, aiokafka produces 240,000 records/s and consumes 750,000, and
librdkafka produces 1,200,000.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import importlib.util
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Self

from gateway.errors import LocalBrokerError
from gateway.extras import format_install_command

_FETCH_API_KEY = 1
_PRODUCER_TYPE = 0  # rd_kafka_type_t
_DISCONNECT = -195  # RD_KAFKA_RESP_ERR__TRANSPORT: the mock closes the connection instead


class EmbeddedKafka:
    """A mock cluster inside this process.

    It runs from the constructor until `close` or the end of the `with` block. All methods but
    `close` raise LocalBrokerError after that. `DISCONNECT` is a code for `fail` that closes the
    connection instead of answering.
    """

    DISCONNECT = _DISCONNECT

    def __init__(
        self, topics: Mapping[str, int] | None = None, nodes: int = 1, *, fetch_version: int = 16
    ) -> None:
        """Start the cluster, or raise LocalBrokerError if librdkafka is not installed or refuses.

        Args:
            topics: The number of partitions of each topic to create, by its name.
            nodes: The number of brokers; their ids begin with 1.
            fetch_version: The highest version of Fetch that it offers. It must be 11 or less where
                a partition is to lose its leader.
        """
        self._fetch_version = fetch_version
        self._library = load_library()
        self._client = _create_client(self._library)
        self._cluster = self._library.rd_kafka_mock_cluster_new(self._client, nodes)
        if not self._cluster:
            self._library.rd_kafka_destroy(self._client)
            raise LocalBrokerError(f"librdkafka could not create a mock cluster of {nodes} nodes")
        self._call("set_apiversion", _FETCH_API_KEY, 0, fetch_version)
        for name, partitions in (topics or {}).items():
            self.create_topic(name, partitions)

    @property
    def bootstrap(self) -> list[str]:
        servers: bytes = self._library.rd_kafka_mock_cluster_bootstraps(self._get_handle())
        return servers.decode().split(",")

    def create_topic(self, name: str, partitions: int = 1, replication: int = 1) -> None:
        self._call("topic_create", name.encode(), partitions, replication)

    def delete_topic(self, name: str) -> None:
        self._call("topic_delete", name.encode())

    def delete_records(self, topic: str, before: Mapping[int, int]) -> None:
        for partition, offset in before.items():
            self._call("partition_delete_records", topic.encode(), partition, offset)

    def lead(self, topic: str, partition: int, node: int | None) -> None:
        """Change the leader of a partition, which raises its leader epoch by one.

        With None there is no leader; LocalBrokerError if `fetch_version` is 12 or more, as
        librdkafka would crash this process at the next Fetch of the partition.
        """
        if node is None and self._fetch_version > 11:
            raise LocalBrokerError(
                f"a Fetch of {topic}-{partition} without a leader would crash this process; "
                "use EmbeddedKafka(..., fetch_version=11)"
            )
        self._call("partition_set_leader", topic.encode(), partition, -1 if node is None else node)

    def fail(self, api: int, *codes: int) -> None:
        """Answer the next requests of one API key with Kafka's error codes, in order.

        0 answers a request normally; `DISCONNECT` closes the connection instead of answering.
        """
        array = (ctypes.c_int * len(codes))(*codes)
        self._library.rd_kafka_mock_push_request_errors_array(
            self._get_handle(), api, len(codes), array
        )

    def forgive(self, api: int) -> None:
        self._library.rd_kafka_mock_clear_request_errors(self._get_handle(), api)

    def down(self, node: int) -> None:
        """Close the connections of a node and accept none; it keeps its leaderships."""
        self._call("broker_set_down", node)

    def up(self, node: int) -> None:
        self._call("broker_set_up", node)

    def delay(self, node: int, seconds: float) -> None:
        self._call("broker_set_rtt", node, round(seconds * 1000))  # librdkafka takes milliseconds

    def close(self) -> None:
        """End the cluster and discard its records. Calling it again does nothing."""
        if self._cluster:
            self._library.rd_kafka_mock_cluster_destroy(self._cluster)
            self._library.rd_kafka_destroy(self._client)
            self._cluster = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _get_handle(self) -> int:
        if not self._cluster:
            raise LocalBrokerError("this embedded Kafka is closed")
        return int(self._cluster)

    def _call(self, function: str, *arguments: object) -> None:
        code = getattr(self._library, f"rd_kafka_mock_{function}")(self._get_handle(), *arguments)
        if code:
            reason = self._library.rd_kafka_err2str(code).decode()
            words = (arg.decode() if isinstance(arg, bytes) else str(arg) for arg in arguments)
            raise LocalBrokerError(
                f"the embedded Kafka refused {function} {' '.join(words)}: {reason}"
            )


def _create_client(library: ctypes.CDLL) -> int:
    """Create the librdkafka client that owns the mock cluster.

    The mock's timers and log lines run on this client's thread, so it has to outlive the cluster.
    """
    error = ctypes.create_string_buffer(512)
    # No destroy: rd_kafka_new takes the configuration over when it succeeds.
    conf = library.rd_kafka_conf_new()
    library.rd_kafka_conf_set(conf, b"log_level", b"0", error, len(error))
    client = library.rd_kafka_new(_PRODUCER_TYPE, conf, error, len(error))
    if not client:
        raise LocalBrokerError(f"librdkafka did not start: {error.value.decode()}")
    return int(client)


@cache
def load_library() -> ctypes.CDLL:
    """Load librdkafka with its mock, preferably the copy that confluent-kafka itself loads."""
    for path in _iter_library_paths():
        library = ctypes.CDLL(path)
        if hasattr(library, "rd_kafka_mock_cluster_new"):
            return _declare_signatures(library)
    raise LocalBrokerError(
        "the embedded Kafka needs librdkafka with its mock cluster; "
        f"{format_install_command('demo')}"
    )


def _iter_library_paths() -> Iterator[str]:
    spec = importlib.util.find_spec("confluent_kafka")
    if spec is not None and spec.origin is not None:
        package = Path(spec.origin).parent
        # Where wheels put their shared libraries on Linux and on macOS.
        wheels = (package.parent / "confluent_kafka.libs", package / ".dylibs")
        for directory in wheels:
            yield from map(str, sorted(directory.glob("librdkafka*")))
    if system_library := ctypes.util.find_library("rdkafka"):
        yield system_library


def _declare_signatures(library: ctypes.CDLL) -> ctypes.CDLL:
    """Declare result and argument types: ctypes would pass a pointer as a 32-bit int otherwise."""
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
