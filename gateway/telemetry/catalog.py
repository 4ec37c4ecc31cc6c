"""Name every metric, with its kind, unit, labels and meaning.

Names follow Prometheus: `gateway_`, the measured thing, the unit in full (seconds, bytes), and
`_total` for counters. A label has few values, and their number has a limit: configured routes,
topics that are read, constants of this code. No label ever identifies a client.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple

from .counts import LATENCY_BUCKETS_S, SIZE_BUCKETS_BYTES

CLUSTER = "cluster"
"""The last label of what is measured per cluster, where the configuration names its clusters."""


class MetricKind(StrEnum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class MergeMode(StrEnum):
    """How the values that several workers have for one series become one value."""

    SUM = "sum"
    MAX = "max"
    MIN = "min"


class Metric(NamedTuple):
    """One metric.

    Attributes:
        name: The name with its unit, without the `_total` of counters.
        labels: The names of its labels, without `CLUSTER`.
        unit: `seconds`, `bytes` or empty.
        merge: How the values of several workers are merged; histograms are always added.
        bounds: The upper bounds of a histogram's buckets.
    """

    name: str
    kind: MetricKind
    help: str
    labels: Sequence[str] = ()
    unit: str = ""
    merge: MergeMode = MergeMode.SUM
    bounds: Sequence[float] = ()

    def label_names(self, labels: Sequence[str]) -> Sequence[str]:
        return self.labels if len(labels) == len(self.labels) else (*self.labels, CLUSTER)

    @property
    def exposed_name(self) -> str:
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

CLIENTS = _gauge("gateway_clients", "Open streams.", "route", "wire")
STREAMS_OPENED = _counter("gateway_streams_opened", "Streams opened.", "route", "wire")
STREAMS_ENDED = _counter(
    "gateway_streams_ended",
    "Streams ended, by the reason of the end event; left: the client disconnected.",
    "route", "wire", "reason",
)  # fmt: skip
DELIVERIES = _counter(
    "gateway_deliveries",
    "Records sent to clients; one for ten clients counts ten times.",
    "route", "wire",
)  # fmt: skip
SENT_BYTES = _counter(
    "gateway_sent_bytes", "Bytes of streams written to connections.", "route", "wire", unit="bytes"
)
DELIVERY_LATENCY_SECONDS = _seconds_histogram(
    "gateway_delivery_latency_seconds",
    "From a record's timestamp to the write to a connection, without private reads.",
    "route", "wire",
)  # fmt: skip
CLIENT_GAPS = _counter(
    "gateway_client_gaps", "Gap events sent to clients.", "route", "wire", "reason"
)
CLIENT_STALLS = _counter(
    "gateway_client_stalls",
    "How often a connection did not accept everything at once.",
    "route", "wire",
)  # fmt: skip
CLIENT_FALLS = _counter(
    "gateway_client_falls",
    "How often a client was too slow for its channel's ring, by slowClient of its route.",
    "route", "wire", "policy",
)  # fmt: skip
CLIENTS_BEHIND = _gauge(
    "gateway_clients_behind",
    "Clients that have not received all records, by why: slow (the connection accepts no more), "
    "no-credit (the client asked for no more), max-rate, catching-up (it reads privately).",
    "route", "state",
)  # fmt: skip
CLIENTS_BEHIND_RECORDS = _gauge(
    "gateway_clients_behind_records",
    "How far clients are behind, summed over partitions, in offsets.",
    "route", "state",
)  # fmt: skip
CLIENTS_BEHIND_RECORDS_MAX = _gauge(
    "gateway_clients_behind_records_max",
    "How far the last client is behind, in offsets.",
    "route", "state", merge=MergeMode.MAX,
)  # fmt: skip
CATCHUP_RECORDS = _counter(
    "gateway_catchup_records",
    "Entries (records, and runs of offsets without one or passed over by an index of keys) that "
    "clients read privately, before any filter, by source: cache (memory), kafka, table (a "
    "snapshot).",
    "route", "wire", "source",
)  # fmt: skip
TOKEN_BYTES = Metric(
    "gateway_token_bytes", MetricKind.HISTOGRAM,
    "Size of the resume tokens that streams began with, about that of event ids.",
    ("route", "wire"), "bytes", MergeMode.SUM, SIZE_BUCKETS_BYTES,
)  # fmt: skip
WEBSOCKETS = _gauge("gateway_websockets", "Open WebSockets.")
REFUSED_CONNECTIONS = _counter(
    "gateway_refused_connections",
    "Refused connections and requests, by limit: connections, perAddress, perIdentity, rate, "
    "descriptors (open files, of which some are kept for Kafka).",
    "limit",
)  # fmt: skip
TLS_HANDSHAKES = _gauge(
    "gateway_tls_handshakes",
    "TLS connections whose handshake or first request's head is not complete.",
)
TLS_HANDSHAKES_REFUSED = _counter(
    "gateway_tls_handshakes_refused",
    "TLS connections closed during the handshake, by reason: connections, perAddress, timeout (10 "
    "s), failed (no TLS, an untrusted certificate, or the client disconnected).",
    "reason",
)  # fmt: skip
REFUSED_REQUESTS = _counter(
    "gateway_refused_requests", 
    "Requests answered with an error, by HTTP status.",
    "status",
)  # fmt: skip

GUARD_READY = _gauge(
    "gateway_guard_ready",
    "1 if the guard can decide about clients (in every worker), else 0: it lacks its issuer's "
    "keys, or gets no answer.",
    "guard", merge=MergeMode.MIN,
)  # fmt: skip

# partitions

PARTITION_LAG_RECORDS = _gauge(
    "gateway_partition_lag_records",
    "How far the shared read is behind the last stable offset, in offsets.",
    "topic", "partition", merge=MergeMode.MAX,
)  # fmt: skip
PARTITION_READY = _gauge(
    "gateway_partition_ready",
    "1 if the partition can be read (by every worker that reads it), else 0.",
    "topic", "partition", merge=MergeMode.MIN,
)  # fmt: skip
PARTITION_STATE = _gauge(
    "gateway_partition_state",
    "1 for the state of the partition's read (with workers: how many are in it): resolving, "
    "streaming, validating, resetting, leaderless, recovering.",
    "topic", "partition", "state",
)  # fmt: skip
PARTITION_RECOVERING = _gauge(
    "gateway_partition_recovering",
    "1 while the partition cannot be read, with the cause (with workers: how many).",
    "topic", "partition", "cause",
)  # fmt: skip
PARTITION_OPEN_TRANSACTION_SECONDS = _gauge(
    "gateway_partition_open_transaction_seconds",
    "How long an open transaction has held the last stable offset; later records wait for it. "
    "Absent without one.",
    "topic", "partition", unit="seconds", merge=MergeMode.MAX,
)  # fmt: skip
PARTITION_READY_SECONDS = _seconds_histogram(
    "gateway_partition_ready_seconds",
    "How long a partition took to become readable after it was first wanted.",
    "topic",
)  # fmt: skip
PARTITION_RECONNECTS = _counter(
    "gateway_partition_reconnects", "How often the read of a partition was interrupted, by cause.",
    "topic", "cause",
)  # fmt: skip
INVALID_RECORDS = _counter(
    "gateway_invalid_records",
    "Records that do not match the model of their topic, each time they are read, by what clients "
    "get instead (`onInvalid`); not-json: not JSON, although filters or transforms look into it.",
    "topic", "outcome",
)  # fmt: skip
GAPS = _counter(
    "gateway_gaps",
    "Gaps found while reading; each counts once for all clients.",
    "topic",
    "reason",
)
GAP_RECORDS = _counter(
    "gateway_gap_records",
    "Offsets in these gaps; retention: deleted before they were read.",
    "topic", "reason",
)  # fmt: skip
FETCHED_RECORDS = _counter(
    "gateway_fetched_records",
    "Entries read from Kafka, by reader: tail (once for all clients), catchup (for clients that "
    "are behind).",
    "topic", "reader",
)  # fmt: skip
FETCHED_BYTES = _counter(
    "gateway_fetched_bytes", "Bytes of these, as Kafka sent them.", "topic", "reader", unit="bytes"
)
ARCHIVE_READS = _counter(
    "gateway_archive_reads",
    "Reads of a partition for a client that is behind, by source: kafka, held (just read for "
    "another client), joined (a read under way).",
    "topic", "source",
)  # fmt: skip
CACHE_BYTES = _gauge(
    "gateway_cache_bytes",
    "Records kept in memory, with the indexes of their keys.",
    "topic",
    unit="bytes",
)
MEMORY_BYTES = _gauge(
    "gateway_memory_bytes",
    "What `memory` limits, by part: cache, rings (recent chunks), tables (snapshots), backlog "
    "(read for those behind), writes (not in Kafka yet), keys (of idempotency), views (what "
    "clients ask for), inflated (large batches being decoded), dictionaries (for compression); "
    "and of clients: unsent (not accepted by slow connections), received (messages and requests, "
    "incomplete or being handled), parsed (bodies in the sidecar), responses (pages being built), "
    "fetched (ahead of polls), replies (for requests that ask later).",
    "part", unit="bytes",
)  # fmt: skip
MEMORY_RELEASES = _counter(
    "gateway_memory_releases",
    "How often something was let go because clients held more than half of `memory`, by part: "
    "unsent and received (a client was disconnected), responses (a page was refused), fetched "
    "(records are fetched again), replies (the older half was dropped).",
    "part",
)  # fmt: skip
MEMORY_LIMIT_BYTES = _gauge("gateway_memory_limit_bytes", "The value of `memory`.", unit="bytes")

# brokers

KAFKA_REACHABLE = _gauge(
    "gateway_kafka_reachable",
    "1 if brokers answer (every worker), else 0.",
    merge=MergeMode.MIN,
)
KAFKA_REQUEST_SECONDS = _seconds_histogram(
    "gateway_kafka_request_seconds",
    "How long brokers took to answer, by API; a Fetch may wait for records.",
    "api",
)  # fmt: skip
KAFKA_REQUEST_FAILURES = _counter(
    "gateway_kafka_request_failures", "Requests that brokers did not answer.", "api", "cause"
)
KAFKA_THROTTLED_SECONDS = _counter(
    "gateway_kafka_throttled_seconds",
    "How long brokers throttled the gateway because of a quota.",
    unit="seconds",
)
BROKER_CONNECTS = _counter("gateway_broker_connects", "Connections established to brokers.", "role")
BROKER_CONNECT_FAILURES = _counter(
    "gateway_broker_connect_failures",
    "Connections to brokers that failed.",
    "cause",
)

# produce

PRODUCED_RECORDS = _counter(
    "gateway_produced_records",
    "Records of clients, by outcome: written, refused (by Kafka), doubtful (no answer), unsent "
    "(too late, or too many waiting).",
    "topic", "outcome",
)  # fmt: skip
PRODUCED_BYTES = _counter(
    "gateway_produced_bytes",
    "Bytes of the keys, values and headers that were written.",
    "topic",
    unit="bytes",
)
PRODUCE_SECONDS = _seconds_histogram(
    "gateway_produce_seconds",
    "From handing a record over to Kafka's acknowledgement.",
    "topic",
)
PRODUCE_WAITING_BYTES = _gauge(
    "gateway_produce_waiting_bytes",
    "Bytes of records that wait for Kafka's acknowledgement.",
    unit="bytes",
)
REPLIES = _counter(
    "gateway_replies",
    "Requests that waited for a reply, by outcome: answered, timeout (504), left (the client "
    "disconnected); late: replies after one of the last two.",
    "topic", "outcome",
)  # fmt: skip

# the sidecar

SIDECAR_REQUESTS = _counter(
    "gateway_sidecar_requests",
    "Requests, by endpoint (empty: none) and HTTP status (none: the connection was lost).",
    "endpoint", "status",
)  # fmt: skip
SIDECAR_SECONDS = _seconds_histogram(
    "gateway_sidecar_seconds",
    "From a request to the end of its response, with the wait of long polls.",
    "endpoint",
)  # fmt: skip
KSQLDB_QUERY_RUNNING = _gauge(
    "gateway_ksqldb_query_running", 
    "1 while the query returns rows, else 0.",
    "query",
)  # fmt: skip
KSQLDB_QUERY_BEGUN = _counter(
    "gateway_ksqldb_query_begun",
    "How often the query was started; each restart may miss or repeat rows.",
    "query",
)  # fmt: skip
KSQLDB_ROWS = _counter(
    "gateway_ksqldb_rows",
    "Rows for the back end, by outcome: delivered, dropped (the back end refused them).",
    "query", "outcome",
)  # fmt: skip
AUDIT_RECORDS = _counter(
    "gateway_audit_records",
    "Audit records, by outcome: written, dropped (too many waited), failed (refused by Kafka or "
    "the file).",
    "outcome",
)  # fmt: skip
REACTIVE_RECORDS = _counter(
    "gateway_reactive_records",
    "Records settled, by outcome: processed, dead (written as dead letters), refused (too large "
    "for that).",
    "group", "topic", "outcome",
)  # fmt: skip
REACTIVE_REPEATED_RECORDS = _counter(
    "gateway_reactive_repeated_records",
    "Records sent to the back end again, because their batch was not settled.",
    "group",
)  # fmt: skip
REACTIVE_BATCHES = _counter(
    "gateway_reactive_batches",
    "Batches sent to the back end, by verdict: answered (item by item), away (refused, late or "
    "busy: retried without limit), suspect (retried, then split).",
    "group", "verdict",
)  # fmt: skip
REACTIVE_SECONDS = _seconds_histogram(
    "gateway_reactive_seconds",
    "How long the back end took to answer for a batch, or the gateway waited.",
    "group",
)  # fmt: skip
REACTIVE_WAITING_RECORDS = _gauge(
    "gateway_reactive_waiting_records", "Records that were read and are not settled.", "group"
)
REACTIVE_LAG_RECORDS = _gauge(
    "gateway_reactive_lag_records",
    "How far the group is behind the ends of its partitions, in offsets, measured every 10 s; "
    "each worker and sidecar has others.",
    "group", "topic",
)  # fmt: skip
REACTIVE_HELD_UP_LANES = _gauge(
    "gateway_reactive_held_up_lanes",
    "Lanes that do not advance: a batch waits for its next try, or a partition cannot be read.",
    "group",
)  # fmt: skip
REACTIVE_REBALANCE_SECONDS = _seconds_histogram(
    "gateway_reactive_rebalance_seconds",
    "How long the group's member was out of the state RUNNING.", "group",
)  # fmt: skip
REACTIVE_LOST_PARTITIONS = _counter(
    "gateway_reactive_lost_partitions",
    "Partitions that another member took over before a commit; their last records come again "
    "there.",
    "group",
)  # fmt: skip
CONSUMER_MISSING_RECORDS = _counter(
    "gateway_consumer_missing_records",
    "Records that Kafka deleted before their group had read them.",
    "group",
)  # fmt: skip
DEAD_LETTERS = _counter(
    "gateway_dead_letters",
    "Dead letters handled on request, by outcome: processed, returned (failed again), parked "
    "(failed at the last retry, or too large), written (added by a request).",
    "outcome",
)  # fmt: skip
REPLAYS = _gauge(
    "gateway_replays",
    "Replays of all sidecars, by state.",
    "state", merge=MergeMode.MAX,
)  # fmt: skip
REPLAYS_OWNED = _gauge("gateway_replays_owned", "Replays that this sidecar runs.")
CONSUMER_INSTANCES = _gauge(
    "gateway_consumer_instances",
    "Consumer instances, by state: subscribed (to topics or partitions), idle.",
    "state",
)  # fmt: skip
CONSUMER_CREATED = _counter("gateway_consumer_created", "Consumer instances created.")
CONSUMER_ENDED = _counter(
    "gateway_consumer_ended",
    "Consumer instances ended, by reason: deleted, expired, closed (with the sidecar).",
    "reason",
)  # fmt: skip
CONSUMER_POLLING = _gauge("gateway_consumer_polling", "Long polls that are waiting.")
CONSUMER_POLLS = _counter(
    "gateway_consumer_polls",
    "Polls answered, by outcome: records, empty, left (the client disconnected; the next poll "
    "returns the same records).",
    "outcome",
)  # fmt: skip
CONSUMER_RECORDS = _counter(
    "gateway_consumer_records", "Records returned to consumer instances.", "topic"
)
CONSUMER_BYTES = _counter(
    "gateway_consumer_bytes",
    "Bytes of their keys, values and headers.",
    "topic",
    unit="bytes",
)
CHAOS_ASSAULTS = _counter(
    "gateway_chaos_assaults", "Requests that the chaos monkey disturbed.", "assault"
)

# the pipeline

PIPELINE_RUNNING = _gauge(
    "gateway_pipeline_running", "1 while the job's query runs, else 0.", "job"
)
PIPELINE_STARTS = _counter(
    "gateway_pipeline_starts",
    "How often the job's query was started.",
    "job",
)  # fmt: skip
PIPELINE_FAILURES = _counter(
    "gateway_pipeline_failures", "How often the job's query ended with an error, by its class.",
    "job", "error",
)  # fmt: skip
PIPELINE_BATCHES = _counter("gateway_pipeline_batches", "Batches that are done.", "job")
PIPELINE_ROWS = _counter("gateway_pipeline_rows", "Input records of these batches.", "job")
PIPELINE_ROWS_PER_SECOND = _gauge(
    "gateway_pipeline_rows_per_second", "Records per second of the latest batch, while it ran.",
    "job",
)  # fmt: skip
PIPELINE_BATCH_SECONDS = _seconds_histogram(
    "gateway_pipeline_batch_seconds",
    "Duration of batches, by phase: triggerExecution (the whole batch), addBatch (its work); "
    "latestOffset, getBatch, queryPlanning, walCommit and commitOffsets are overhead.",
    "job", "phase",
)  # fmt: skip
PIPELINE_STATE_ROWS = _gauge(
    "gateway_pipeline_state_rows", "Rows of the state, by operator.", "job", "operator"
)
PIPELINE_STATE_BYTES = _gauge(
    "gateway_pipeline_state_bytes",
    "Size of the state's files (RocksDB's SSTs).",
    "job",
    "operator",
    unit="bytes",
)
PIPELINE_STATE_MEMORY_BYTES = _gauge(
    "gateway_pipeline_state_memory_bytes",
    "Memory that the state takes.",
    "job",
    "operator",
    unit="bytes",
)
PIPELINE_STATE_DAMAGED = _counter(
    "gateway_pipeline_state_damaged",
    "Files of the state found damaged, repaired or not.",
    "job",
)  # fmt: skip
PIPELINE_WATERMARK_AGE_SECONDS = _gauge(
    "gateway_pipeline_watermark_age_seconds",
    "How far the watermark, if there is one, is behind the clock.",
    "job", unit="seconds",
)  # fmt: skip
PIPELINE_LATE_ROWS = _counter(
    "gateway_pipeline_late_rows",
    "Rows behind the watermark; for aggregates, after their partial aggregation.",
    "job",
)  # fmt: skip
PIPELINE_GAPS = _counter(
    "gateway_pipeline_gaps",
    "Ranges of input that Kafka deleted before they were read, or scanned for late and invalid "
    "records, each in the log. Jobs without gap records look when they start.",
    "job", "topic",
)  # fmt: skip
PIPELINE_BEHIND_OFFSETS = _gauge(
    "gateway_pipeline_behind_offsets",
    "Offsets of a topic left after the latest batch, or behind open transactions.",
    "job", "topic",
)  # fmt: skip
PIPELINE_ALERTS = _gauge(
    "gateway_pipeline_alerts", "1 while an alert is raised, such as late or state-damaged.",
    "job", "alert",
)  # fmt: skip
PIPELINE_PROGRESS_UNTOLD = _counter(
    "gateway_pipeline_progress_untold",
    "Progress events dropped: too many were waiting, or Kafka refused them.",
    "job",
)  # fmt: skip

# the process

EVENT_LOOP_LAG_SECONDS = _seconds_histogram(
    "gateway_event_loop_lag_seconds",
    "How late the event loop runs, measured four times per second.", "worker",
)  # fmt: skip
LOG_LINES = _counter("gateway_log_lines", "Log lines, by level.", "level")
WORKERS = _gauge("gateway_workers", "Workers in this scrape.")
WORKERS_MISSING = _gauge("gateway_workers_missing", "Workers that did not answer this scrape.")
WORKER_RESTARTS = _counter(
    "gateway_worker_restarts", 
    "How often a worker was started again after a crash.",
    "worker",
)  # fmt: skip
RELOADS = _counter(
    "gateway_reloads",
    "Reloads of the configuration, by outcome: applied, refused (all stayed as it was).",
    "outcome",
)  # fmt: skip
LAST_RELOAD_SUCCESSFUL = _gauge(
    "gateway_last_reload_successful",
    "0 if the last reload was refused, else 1.",
    merge=MergeMode.MIN,
)  # fmt: skip
CERTIFICATE_EXPIRY_TIMESTAMP_SECONDS = _gauge(
    "gateway_certificate_expiry_timestamp_seconds",
    "When the certificate of listen.tls expires, in seconds since the epoch (the earliest).",
    unit="seconds", merge=MergeMode.MIN,
)  # fmt: skip
INFO = _gauge(
    "gateway_info",
    "Always 1; the labels say the name and version.",
    "name",
    "version",
    merge=MergeMode.MAX,
)
PROCESS_CPU_SECONDS = _counter(
    "process_cpu_seconds", "User and system CPU time.", "worker", unit="seconds"
)
PROCESS_RESIDENT_MEMORY_BYTES = _gauge(
    "process_resident_memory_bytes", "Resident memory.", "worker", unit="bytes"
)
PROCESS_VIRTUAL_MEMORY_BYTES = _gauge(
    "process_virtual_memory_bytes", "Virtual memory.", "worker", unit="bytes"
)
PROCESS_START_TIME_SECONDS = _gauge(
    "process_start_time_seconds",
    "When the process started, in seconds since the epoch.",
    "worker",
    unit="seconds",
)
PROCESS_OPEN_FDS = _gauge("process_open_fds", "File descriptors in use.", "worker")
PROCESS_MAX_FDS = _gauge(
    "process_max_fds", "The most file descriptors that the process may use.", "worker"
)

METRICS: Sequence[Metric] = tuple(each for each in list(vars().values()) if type(each) is Metric)
"""All metrics of this module, in the order of their definition."""
