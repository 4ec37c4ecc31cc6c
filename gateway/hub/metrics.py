"""The figures of a hub and its cluster, as metrics have them, read from what is there.

Costs by partitions and routes, never by clients: 1,000 partitions are 6 ms.
"""

from __future__ import annotations

from gateway.core.log.partition_reader import PartitionReader, ReaderState
from gateway.hub.fanout.hub import Hub
from gateway.hub.fanout.hubs import Hubs
from gateway.hub.reads.shared_reads import STALE_S, SharedReads
from gateway.kafka.fetch.fetcher import Fetcher
from gateway.kafka.produce.producer import Producer
from gateway.telemetry import catalog
from gateway.telemetry.counts import BrokerRequestCounts
from gateway.telemetry.samples import MetricSamples
from gateway.telemetry.traffic import ClientsBehind, StreamCounts

LEADERLESS, RECOVERING = "leaderless", "recovering"


def collect_all_metrics(hubs: Hubs, figures: MetricSamples) -> None:
    """Add what there is to know of all hubs."""
    figures.add(catalog.WEBSOCKETS, len(hubs.drain_callbacks))
    figures.add(catalog.MEMORY_LIMIT_BYTES, hubs.settings.memory)
    for hub in hubs:
        collect_hub_metrics(hub, figures)


def collect_hub_metrics(hub: Hub, figures: MetricSamples) -> None:
    """Add what there is to know of a hub and its cluster. A route is of one cluster, so what is
    counted by routes goes without its name."""
    for traffic in hub.traffics:
        _collect_traffic(traffic, figures)
    _collect_lag(hub.behind, figures)
    figures = figures.for_cluster(hub.name)
    figures.add_counts(catalog.REPLIES, hub.replies)
    figures.add(catalog.KAFKA_REACHABLE, hub.started and hub.cluster.is_reachable)
    if not hub.started:
        return
    for reader, fetcher in (
        ("tail", hub.shared_reads.fetcher),
        ("catchup", hub.backfill_reader.fetcher),
    ):
        _collect_reads(reader, fetcher, figures)
    _collect_partitions(hub.shared_reads, figures)
    for part, size in hub.memory.items():
        figures.add(catalog.MEMORY_BYTES, size, part)
    figures.add_counts(catalog.ARCHIVE_READS, hub.backfill_reader.read_counts)
    figures.add_counts(catalog.INVALID_RECORDS, hub.models.invalid)
    _collect_requests(hub.cluster.connections.request_stats, figures)
    _collect_writes(hub.publisher.producer, figures)


def _collect_traffic(traffic: StreamCounts, figures: MetricSamples) -> None:
    of = traffic.route, traffic.wire
    figures.add(catalog.CLIENTS, traffic.open, *of)
    figures.add(catalog.STREAMS_OPENED, traffic.opened, *of)
    figures.add(catalog.DELIVERIES, traffic.records, *of)
    figures.add(catalog.SENT_BYTES, traffic.bytes, *of)
    figures.add(catalog.CLIENT_STALLS, traffic.stalls, *of)
    figures.add_histogram(catalog.DELIVERY_LATENCY_SECONDS, traffic.latency, *of)
    figures.add_histogram(catalog.TOKEN_BYTES, traffic.token_bytes, *of)
    for metric, counts in (
        (catalog.STREAMS_ENDED, traffic.ended),
        (catalog.CLIENT_GAPS, traffic.gaps),
        (catalog.CLIENT_FALLS, traffic.falls),
        (catalog.CATCHUP_RECORDS, traffic.catch_up_records),
    ):
        for word, count in counts.items():
            figures.add(metric, count, *of, word)


def _collect_lag(behind: ClientsBehind, figures: MetricSamples) -> None:
    figures.add_counts(catalog.CLIENTS_BEHIND, behind.clients)
    figures.add_counts(catalog.CLIENTS_BEHIND_RECORDS, behind.records)
    figures.add_counts(catalog.CLIENTS_BEHIND_RECORDS_MAX, behind.max_records)


def _collect_reads(reader: str, fetcher: Fetcher, figures: MetricSamples) -> None:
    reads = fetcher.reads
    for topic, records in reads.records.items():
        figures.add(catalog.FETCHED_RECORDS, records, topic, reader)
        figures.add(catalog.FETCHED_BYTES, reads.bytes[topic], topic, reader)
    if reader == "catchup":  # it has partitions for moments only
        return
    figures.add_counts(catalog.PARTITION_RECONNECTS, reads.reconnects)
    figures.add_counts(catalog.GAPS, reads.gaps)
    figures.add_counts(catalog.GAP_RECORDS, reads.gap_records)
    for topic, seconds in reads.ready_seconds.items():
        figures.add_histogram(catalog.PARTITION_READY_SECONDS, seconds, topic)


def _collect_partitions(shared_reads: SharedReads, figures: MetricSamples) -> None:
    now, kept = shared_reads.fetcher.now(), 0
    for topic, some in shared_reads.by_topic.items():
        held = sum(feed.log.bytes for feed in some)
        kept += held
        figures.add(catalog.CACHE_BYTES, held, topic)
        for feed in some:
            _collect_partition(feed.reader, now, figures)
    figures.add(catalog.MEMORY_BYTES, kept, "cache")


def _collect_partition(reader: PartitionReader, now: float, figures: MetricSamples) -> None:
    topic, partition = reader.tp
    ready = reader.is_ready and now - reader.last_response_at <= STALE_S
    figures.add(catalog.PARTITION_READY, ready, topic, partition)
    figures.add(catalog.PARTITION_STATE, 1, topic, partition, _describe_state(reader))
    if reader.cause is not None:
        figures.add(catalog.PARTITION_RECOVERING, 1, topic, partition, reader.cause)
    at, end = reader.position.offset, reader.last_stable_offset
    if at is not None and end >= 0:
        figures.add(catalog.PARTITION_LAG_RECORDS, max(0, end - at), topic, partition)


def _describe_state(reader: PartitionReader) -> str:
    if reader.leader is None:
        return LEADERLESS
    if reader.cause is not None and reader.state is ReaderState.STREAMING:
        return RECOVERING
    return reader.state.value


def _collect_requests(requests: BrokerRequestCounts, figures: MetricSamples) -> None:
    for api, seconds in requests.seconds.items():
        figures.add_histogram(catalog.KAFKA_REQUEST_SECONDS, seconds, api)
    figures.add_counts(catalog.KAFKA_REQUEST_FAILURES, requests.failures)
    figures.add_counts(catalog.BROKER_CONNECTS, requests.connects)
    figures.add_counts(catalog.BROKER_CONNECT_FAILURES, requests.connect_failures)


def _collect_writes(producer: Producer, figures: MetricSamples) -> None:
    writes = producer.writes
    figures.add_counts(catalog.PRODUCED_RECORDS, writes.records)
    figures.add_counts(catalog.PRODUCED_BYTES, writes.bytes)
    for topic, seconds in writes.seconds.items():
        figures.add_histogram(catalog.PRODUCE_SECONDS, seconds, topic)
    figures.add(catalog.PRODUCE_WAITING_BYTES, producer.pending_bytes)
