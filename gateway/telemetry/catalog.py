"""Every metric there is: its name, kind, labels and meaning. The README lists the same.

Names are Prometheus's way: `gateway_`, what is measured, the unit in full (seconds, bytes),
`_total` for what only grows. Labels are few and bounded: routes as configured, topics that are
read, words of this code; never a client.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple

from .histogram import LATENCY_BUCKETS_S, SIZE_BUCKETS_BYTES

CLUSTER = "cluster"
"""What figures of a cluster have as their last label, where it has a name."""


class MetricKind(StrEnum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class MergeMode(StrEnum):
    """What several workers' values of one series come to."""

    SUM = "sum"
    MAX = "most"
    MIN = "least"


class Metric(NamedTuple):
    """name: with its unit, of counters without `_total`. unit: seconds, bytes or nothing."""

    name: str
    kind: MetricKind
    help: str
    labels: Sequence[str] = ()
    unit: str = ""
    merge: MergeMode = MergeMode.SUM
    bounds: Sequence[float] = ()

    def label_names(self, labels: Sequence[str]) -> Sequence[str]:
        """Of the labels of a series, which may have one more."""
        return self.labels if len(labels) == len(self.labels) else (*self.labels, CLUSTER)

    @property
    def exposed_name(self) -> str:
        """As a scrape has it."""
        return f"{self.name}_total" if self.kind is MetricKind.COUNTER else self.name


def _counter(name: str, help: str, *labels: str, unit: str = "") -> Metric:
    return Metric(name, MetricKind.COUNTER, help, labels, unit)


def _gauge(
    name: str, help: str, *labels: str, unit: str = "", merge: MergeMode = MergeMode.SUM
) -> Metric:
    return Metric(name, MetricKind.GAUGE, help, labels, unit, merge)


def _seconds_histogram(name: str, help: str, *labels: str) -> Metric:
    return Metric(
        name, MetricKind.HISTOGRAM, help, labels, "seconds", MergeMode.SUM, LATENCY_BUCKETS_S
    )


# clients

CLIENTS = _gauge("gateway_clients", "Streams that are open.", "route", "wire")
STREAMS_OPENED = _counter("gateway_streams_opened", "Streams that were opened.", "route", "wire")
STREAMS_ENDED = _counter(
    "gateway_streams_ended",
    "Streams that are over, by the reason of their end event; left: the client went away.",
    "route", "wire", "reason",
)  # fmt: skip
DELIVERIES = _counter(
    "gateway_deliveries", "Records sent to clients: one record to ten clients is ten.",
    "route", "wire",
)  # fmt: skip
SENT_BYTES = _counter(
    "gateway_sent_bytes", "Bytes of streams handed to connections.", "route", "wire", unit="bytes"
)
DELIVERY_LATENCY_SECONDS = _seconds_histogram(
    "gateway_delivery_latency_seconds",
    "From a record's timestamp to where it was written to a client's connection, of records that "
    "are sent as they come; what is read alone, while catching up, is not in it.",
    "route", "wire",
)  # fmt: skip
CLIENT_GAPS = _counter(
    "gateway_client_gaps", "Gap events sent to clients.", "route", "wire", "reason"
)
CLIENT_STALLS = _counter(
    "gateway_client_stalls",
    "How often a connection did not take all it was given, and its client had to wait for it.",
    "route", "wire",
)  # fmt: skip
CLIENT_FALLS = _counter(
    "gateway_client_falls",
    "How often a client was too slow for what is kept for all, by what slowClient has done about "
    "it: catchUp loses nothing; skip, conflate and disconnect leave records out.",
    "route", "wire", "policy",
)  # fmt: skip
CLIENTS_BEHIND = _gauge(
    "gateway_clients_behind",
    "Clients that have yet to get records there are; slow: their connection takes no more; "
    "no-credit: they asked for no more; max-rate: they have had what maxRate gives them; "
    "catching-up: they read alone.",
    "route", "state",
)  # fmt: skip
CLIENTS_BEHIND_RECORDS = _gauge(
    "gateway_clients_behind_records",
    "How far these are behind, all together, in offsets of their partitions.",
    "route", "state",
)  # fmt: skip
CLIENTS_BEHIND_RECORDS_MAX = _gauge(
    "gateway_clients_behind_records_max", "How far the last of these is behind, in offsets.",
    "route", "state", merge=MergeMode.MAX,
)  # fmt: skip
CATCHUP_RECORDS = _counter(
    "gateway_catchup_records",
    "Records (and what stands between them) that clients read alone, before any filter, by where "
    "they came from: cache (kept in memory), kafka, table (a snapshot's).",
    "route", "wire", "source",
)  # fmt: skip
TOKEN_BYTES = Metric(
    "gateway_token_bytes", MetricKind.HISTOGRAM,
    "Size of the ids that streams began with; every event has one of about that size.",
    ("route", "wire"), "bytes", MergeMode.SUM, SIZE_BUCKETS_BYTES,
)  # fmt: skip
WEBSOCKETS = _gauge("gateway_websockets", "WebSockets that are open, with any number of streams.")
REFUSED_CONNECTIONS = _counter(
    "gateway_refused_connections",
    "Connections that were one too many, by the limit: connections (of all), perAddress, "
    "perIdentity, rate (the address came too often).",
    "limit",
)  # fmt: skip
TLS_HANDSHAKES = _gauge(
    "gateway_tls_handshakes",
    "TLS connections that have yet to ask for something: their handshake or the head of their "
    "first request is not complete.",
)
TLS_HANDSHAKES_REFUSED = _counter(
    "gateway_tls_handshakes_refused",
    "TLS connections that were closed in the handshake, by reason: connections, perAddress (one "
    "too many under way), timeout (10 s), failed (no TLS, no certificate that is trusted, or the "
    "client left).",
    "reason",
)  # fmt: skip
REFUSED_REQUESTS = _counter(
    "gateway_refused_requests", "Requests that were answered with an error, by HTTP status.",
    "status",
)  # fmt: skip

# partitions

PARTITION_LAG_RECORDS = _gauge(
    "gateway_partition_lag_records",
    "How far the shared read is behind the end that may be read (the last stable offset).",
    "topic", "partition", merge=MergeMode.MAX,
)  # fmt: skip
PARTITION_READY = _gauge(
    "gateway_partition_ready",
    "1 while the partition can be read (by every worker that reads it), else 0.",
    "topic", "partition", merge=MergeMode.MIN,
)  # fmt: skip
PARTITION_STATE = _gauge(
    "gateway_partition_state",
    "1 for the state its read is in (of workers: how many are): resolving, streaming, validating, "
    "resetting, leaderless, recovering.",
    "topic", "partition", "state",
)  # fmt: skip
PARTITION_RECOVERING = _gauge(
    "gateway_partition_recovering",
    "1 while the partition cannot be read, with the cause (of workers: how many).",
    "topic", "partition", "cause",
)  # fmt: skip
PARTITION_READY_SECONDS = _seconds_histogram(
    "gateway_partition_ready_seconds",
    "From where a partition was first wanted to where it could be read.",
    "topic",
)  # fmt: skip
PARTITION_RECONNECTS = _counter(
    "gateway_partition_reconnects", "How often a partition's read was interrupted, by the cause.",
    "topic", "cause",
)  # fmt: skip
INVALID_RECORDS = _counter(
    "gateway_invalid_records",
    "Records that were read and are none of their topic's model, by what is shown of them "
    "(`onInvalid`); one that is read again counts again.",
    "topic", "outcome",
)  # fmt: skip
GAPS = _counter(
    "gateway_gaps", "Gaps that were found while reading, one for all clients.", "topic", "reason"
)
GAP_RECORDS = _counter(
    "gateway_gap_records",
    "Offsets in them; reason retention: records that Kafka deleted before they were read.",
    "topic", "reason",
)  # fmt: skip
FETCHED_RECORDS = _counter(
    "gateway_fetched_records",
    "Records (and what stands between them) read from Kafka; reader: tail is the one read for all, "
    "catchup what single clients lack.",
    "topic", "reader",
)  # fmt: skip
FETCHED_BYTES = _counter(
    "gateway_fetched_bytes", "Bytes of them, as Kafka sent them.", "topic", "reader", unit="bytes"
)
ARCHIVE_READS = _counter(
    "gateway_archive_reads",
    "Reads of partitions for single clients, by how they were answered: kafka, held (what was read "
    "for another a moment ago), joined (a read that was under way).",
    "topic", "source",
)  # fmt: skip
CACHE_BYTES = _gauge(
    "gateway_cache_bytes", "Records kept in memory for those who come late.", "topic", unit="bytes"
)
MEMORY_BYTES = _gauge(
    "gateway_memory_bytes",
    "What the option memory bounds: cache, rings (recent chunks), tables (snapshots), backlog "
    "(read and not taken yet), views (what clients ask for), unsent (not taken by slow clients), "
    "inflated (a large batch being read), received (messages of clients, not done yet).",
    "part", unit="bytes",
)  # fmt: skip
MEMORY_LIMIT_BYTES = _gauge("gateway_memory_limit_bytes", "The option memory.", unit="bytes")

# brokers

KAFKA_REACHABLE = _gauge(
    "gateway_kafka_reachable",
    "1 while brokers answer (to every worker), else 0.",
    merge=MergeMode.MIN,
)
KAFKA_REQUEST_SECONDS = _seconds_histogram(
    "gateway_kafka_request_seconds",
    "Until brokers answered; a Fetch may wait for records. The count is that of requests.",
    "api",
)  # fmt: skip
KAFKA_REQUEST_FAILURES = _counter(
    "gateway_kafka_request_failures", "Requests that were not answered.", "api", "cause"
)
BROKER_CONNECTS = _counter("gateway_broker_connects", "Connections made to brokers.", "role")
BROKER_CONNECT_FAILURES = _counter(
    "gateway_broker_connect_failures", "Connections to brokers that could not be made.", "cause"
)

# produce

PRODUCED_RECORDS = _counter(
    "gateway_produced_records",
    "Records of clients for Kafka, by what became of them: written, refused (by Kafka), doubtful "
    "(no answer), unsent (too late, or too many).",
    "topic", "outcome",
)  # fmt: skip
PRODUCED_BYTES = _counter(
    "gateway_produced_bytes", "Keys, values and headers that were written.", "topic", unit="bytes"
)
PRODUCE_SECONDS = _seconds_histogram(
    "gateway_produce_seconds", "From where a record was handed over to where Kafka has it.", "topic"
)
PRODUCE_WAITING_BYTES = _gauge(
    "gateway_produce_waiting_bytes", "What waits for Kafka's answer.", unit="bytes"
)
REPLIES = _counter(
    "gateway_replies",
    "Requests that waited for a reply, by what became of them: answered, timeout (504), left (the "
    "client went away); late: replies to one of the last two, which were dropped.",
    "topic", "outcome",
)  # fmt: skip

# the sidecar

SIDECAR_REQUESTS = _counter(
    "gateway_sidecar_requests",
    "Requests to the sidecar, by endpoint (empty: to none) and HTTP status (none: the connection "
    "was lost before).",
    "endpoint", "status",
)  # fmt: skip
SIDECAR_SECONDS = _seconds_histogram(
    "gateway_sidecar_seconds",
    "From a request to the end of its answer; a long poll waits for records, a stream lasts.",
    "endpoint",
)  # fmt: skip
KSQLDB_QUERY_RUNNING = _gauge(
    "gateway_ksqldb_query_running", "1 while the configured query brings rows, else 0.",
    "query",
)  # fmt: skip
KSQLDB_QUERY_BEGUN = _counter(
    "gateway_ksqldb_query_begun",
    "How often the query was begun: each time but the first, rows may be missing or come again.",
    "query",
)  # fmt: skip
KSQLDB_ROWS = _counter(
    "gateway_ksqldb_rows",
    "Rows for the back end, by what became of them: delivered, dropped (it refused them).",
    "query", "outcome",
)  # fmt: skip
AUDIT_RECORDS = _counter(
    "gateway_audit_records",
    "Audit records, by what became of them: written, dropped (too many were waiting), failed "
    "(refused by Kafka or the file).",
    "outcome",
)  # fmt: skip
REACTIVE_RECORDS = _counter(
    "gateway_reactive_records",
    "Records of reactive groups that are done with: processed (by the back end), dead (among the "
    "dead letters).",
    "group", "topic", "outcome",
)  # fmt: skip
REACTIVE_REPEATED_RECORDS = _counter(
    "gateway_reactive_repeated_records",
    "Records that went to the back end another time, as their batch was not settled the first.",
    "group",
)  # fmt: skip
REACTIVE_BATCHES = _counter(
    "gateway_reactive_batches",
    "Batches that went to the back end, by what came of it: answered (item by item), away "
    "(refused, late, busy: tried for ever), suspect (tried, then taken apart).",
    "group", "verdict",
)  # fmt: skip
REACTIVE_SECONDS = _seconds_histogram(
    "gateway_reactive_seconds", "Until the back end answered for a batch, or was given up.",
    "group",
)  # fmt: skip
REACTIVE_WAITING_RECORDS = _gauge(
    "gateway_reactive_waiting_records", "Records that were read and are not done with.", "group"
)
REACTIVE_HELD_UP_LANES = _gauge(
    "gateway_reactive_held_up_lanes",
    "Lanes whose batch failed and waits for its next try; its partitions stand still.",
    "group",
)  # fmt: skip
REACTIVE_REBALANCE_SECONDS = _seconds_histogram(
    "gateway_reactive_rebalance_seconds",
    "From where the group's member left RUNNING to where it was there again.", "group",
)  # fmt: skip
REACTIVE_LOST_PARTITIONS = _counter(
    "gateway_reactive_lost_partitions",
    "Partitions that were another member's before they could be given up: their last records came "
    "again there.",
    "group",
)  # fmt: skip
CONSUMER_MISSING_RECORDS = _counter(
    "gateway_consumer_missing_records",
    "Records that Kafka deleted before their group had read them; it goes on at the first there "
    "is.",
    "group",
)  # fmt: skip
DEAD_LETTERS = _counter(
    "gateway_dead_letters",
    "Dead letters that were handed over or in on request, by what became of them: processed, "
    "returned (failed again), parked (failed at the last retry), written (handed in).",
    "outcome",
)  # fmt: skip
REPLAYS = _gauge(
    "gateway_replays",
    "Replays that are known to this sidecar, whoever works on them, by their state.",
    "state", merge=MergeMode.MAX,
)  # fmt: skip
REPLAYS_OWNED = _gauge("gateway_replays_owned", "Replays that this sidecar works on.")
CONSUMER_INSTANCES = _gauge(
    "gateway_consumer_instances",
    "Instances that there are; subscribed: they read topics or partitions; idle: they do not.",
    "state",
)  # fmt: skip
CONSUMER_CREATED = _counter("gateway_consumer_created", "Instances that were created.")
CONSUMER_ENDED = _counter(
    "gateway_consumer_ended",
    "Instances that are gone: deleted, expired (nobody asked them), closed (with the sidecar).",
    "reason",
)  # fmt: skip
CONSUMER_POLLING = _gauge("gateway_consumer_polling", "Long polls that are under way.")
CONSUMER_POLLS = _counter(
    "gateway_consumer_polls",
    "Polls that were answered, with records, with none (empty), or to nobody (left: what they had "
    "comes with the next).",
    "outcome",
)  # fmt: skip
CONSUMER_RECORDS = _counter(
    "gateway_consumer_records", "Records given to consumer instances.", "topic"
)
CONSUMER_BYTES = _counter(
    "gateway_consumer_bytes", "Bytes of their keys and values.", "topic", unit="bytes"
)
CHAOS_ASSAULTS = _counter(
    "gateway_chaos_assaults", "Requests that the chaos monkey met.", "assault"
)

# the pipeline

PIPELINE_RUNNING = _gauge(
    "gateway_pipeline_running", "1 while the job's query runs, else 0.", "job"
)
PIPELINE_STARTS = _counter(
    "gateway_pipeline_starts", "How often the job's query was begun; all but the first: restarts.",
    "job",
)  # fmt: skip
PIPELINE_FAILURES = _counter(
    "gateway_pipeline_failures", "How often the job's query ended with an error, by its class.",
    "job", "error",
)  # fmt: skip
PIPELINE_BATCHES = _counter("gateway_pipeline_batches", "Batches that are done.", "job")
PIPELINE_ROWS = _counter("gateway_pipeline_rows", "Records of inputs in them.", "job")
PIPELINE_ROWS_PER_SECOND = _gauge(
    "gateway_pipeline_rows_per_second", "Records a second of the latest batch, while it worked.",
    "job",
)  # fmt: skip
PIPELINE_BATCH_SECONDS = _seconds_histogram(
    "gateway_pipeline_batch_seconds",
    "Of batches, by phase: triggerExecution is all of one, addBatch its work; latestOffset, "
    "getBatch, queryPlanning, walCommit and commitOffsets are what goes with it.",
    "job", "phase",
)  # fmt: skip
PIPELINE_STATE_ROWS = _gauge(
    "gateway_pipeline_state_rows", "Rows of the state, by operator.", "job", "operator"
)
PIPELINE_STATE_BYTES = _gauge(
    "gateway_pipeline_state_bytes", "Its files (RocksDB's SSTs).", "job", "operator", unit="bytes"
)
PIPELINE_STATE_MEMORY_BYTES = _gauge(
    "gateway_pipeline_state_memory_bytes", "Memory it takes.", "job", "operator", unit="bytes"
)
PIPELINE_STATE_DAMAGED = _counter(
    "gateway_pipeline_state_damaged",
    "Files of the state that were found damaged, mended or not; Spark's own metrics stay 0.", "job",
)  # fmt: skip
PIPELINE_WATERMARK_AGE_SECONDS = _gauge(
    "gateway_pipeline_watermark_age_seconds",
    "How far the watermark is behind the clock; jobs without one have none.",
    "job", unit="seconds",
)  # fmt: skip
PIPELINE_LATE_ROWS = _counter(
    "gateway_pipeline_late_rows",
    "Rows that came beyond the watermark; of aggregates after their first, partial aggregation.",
    "job",
)  # fmt: skip
PIPELINE_GAPS = _counter(
    "gateway_pipeline_gaps",
    "Ranges of input that retention took before they were read, each told by a gap record.",
    "job", "topic",
)  # fmt: skip
PIPELINE_UNREADABLE_RECORDS = _counter(
    "gateway_pipeline_unreadable_records",
    "Invalid records that were passed over, as Spark cannot read their timestamp.",
    "job", "topic",
)  # fmt: skip
PIPELINE_BEHIND_OFFSETS = _gauge(
    "gateway_pipeline_behind_offsets", "Offsets of a topic that the latest batch left.",
    "job", "topic",
)  # fmt: skip
PIPELINE_ALERTS = _gauge(
    "gateway_pipeline_alerts", "1 while an alert is raised, such as late or state-damaged.",
    "job", "alert",
)  # fmt: skip
PIPELINE_PROGRESS_UNTOLD = _counter(
    "gateway_pipeline_progress_untold",
    "Progress that was told to nobody: too much waited, or Kafka did not take it.",
    "job",
)  # fmt: skip

# the process

EVENT_LOOP_LAG_SECONDS = _seconds_histogram(
    "gateway_event_loop_lag_seconds",
    "How late the event loop is: looked at four times a second.", "worker",
)  # fmt: skip
LOG_LINES = _counter("gateway_log_lines", "Lines logged, by level.", "level")
WORKERS = _gauge("gateway_workers", "Workers that this scrape is of.")
WORKERS_MISSING = _gauge(
    "gateway_workers_missing", "Workers that did not answer it; it lacks theirs."
)
CERTIFICATE_EXPIRY_TIMESTAMP_SECONDS = _gauge(
    "gateway_certificate_expiry_timestamp_seconds",
    "When the certificate of listen.tls is over, by the epoch (of workers: the first one's).",
    unit="seconds", merge=MergeMode.MIN,
)  # fmt: skip
INFO = _gauge("gateway_info", "1.", "name", "version", merge=MergeMode.MAX)
PROCESS_CPU_SECONDS = _counter(
    "process_cpu_seconds", "User and system time.", "worker", unit="seconds"
)
PROCESS_RESIDENT_MEMORY_BYTES = _gauge(
    "process_resident_memory_bytes", "Resident memory.", "worker", unit="bytes"
)
PROCESS_VIRTUAL_MEMORY_BYTES = _gauge(
    "process_virtual_memory_bytes", "Virtual memory.", "worker", unit="bytes"
)
PROCESS_START_TIME_SECONDS = _gauge(
    "process_start_time_seconds", "When it started, by the epoch.", "worker", unit="seconds"
)
PROCESS_OPEN_FDS = _gauge("process_open_fds", "File descriptors in use.", "worker")
PROCESS_MAX_FDS = _gauge("process_max_fds", "How many it may use.", "worker")

METRICS: Sequence[Metric] = tuple(each for each in list(vars().values()) if type(each) is Metric)
