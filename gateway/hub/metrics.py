"""Collect the metrics of hubs and their clusters from the counters that they keep.

The cost depends on the number of partitions and routes, never on the number of clients: 1,000
partitions take 6 ms.
"""

from __future__ import annotations

from gateway.core.log.partition_reader import PartitionReader
from gateway.hub.fanout.client_memory import HeldPart
from gateway.hub.fanout.hub import Hub
from gateway.hub.fanout.hubs import Hubs
from gateway.hub.reads.shared_reads import STALE_S, SharedReads
from gateway.kafka.fetch.fetcher import Fetcher
from gateway.kafka.produce.producer import Producer
from gateway.telemetry import catalog
from gateway.telemetry.counts import BrokerRequestCounts
from gateway.telemetry.samples import MetricSamples
from gateway.telemetry.traffic import ClientsBehind, StreamCounts


def collect_all_metrics(hubs: Hubs, samples: MetricSamples) -> None:
    samples.add(catalog.WEBSOCKETS, hubs.websocket_count)
    samples.add(catalog.MEMORY_LIMIT_BYTES, hubs.settings.memory)
    samples.add_counts(catalog.MEMORY_RELEASES, hubs.client_memory.releases)
    samples.add_zeros(catalog.MEMORY_RELEASES, HeldPart)
    for hub in hubs:
        collect_hub_metrics(hub, samples)


def collect_hub_metrics(hub: Hub, samples: MetricSamples) -> None:
    """Add the metrics of one hub and its cluster to the samples.

    A route has one cluster, so samples that are labelled by route have no label for the cluster.
    """
    for traffic in hub.traffics:
        _collect_traffic(traffic, samples)
    _collect_lag(hub.behind, samples)
    # From here on the samples also get the name of the cluster as a label.
    samples = samples.for_cluster(hub.name)
    samples.add_counts(catalog.REPLIES, hub.replies)
    samples.add(catalog.KAFKA_REACHABLE, hub.started and hub.cluster.is_reachable)
    if not hub.started:
        return
    for reader, fetcher in (
        ("tail", hub.shared_reads.fetcher),
        ("catchup", hub.backfill_reader.fetcher),
    ):
        _collect_reads(reader, fetcher, samples)
    _collect_partitions(hub.shared_reads, samples)
    for part, size in hub.memory.items():
        samples.add(catalog.MEMORY_BYTES, size, part)
    samples.add_counts(catalog.ARCHIVE_READS, hub.backfill_reader.read_counts)
    samples.add_counts(catalog.INVALID_RECORDS, hub.models.invalid)
    _collect_requests(hub.cluster.connections.request_stats, samples)
    _collect_writes(hub.publisher.producer, samples)


def _collect_traffic(traffic: StreamCounts, samples: MetricSamples) -> None:
    labels = traffic.route, traffic.wire
    samples.add(catalog.CLIENTS, traffic.open, *labels)
    samples.add(catalog.STREAMS_OPENED, traffic.opened, *labels)
    samples.add(catalog.DELIVERIES, traffic.records, *labels)
    samples.add(catalog.SENT_BYTES, traffic.bytes, *labels)
    samples.add(catalog.CLIENT_STALLS, traffic.stalls, *labels)
    samples.add_histogram(catalog.DELIVERY_LATENCY_SECONDS, traffic.latency, *labels)
    samples.add_histogram(catalog.TOKEN_BYTES, traffic.token_bytes, *labels)
    for metric, counts in (
        (catalog.STREAMS_ENDED, traffic.ended),
        (catalog.CLIENT_GAPS, traffic.gaps),
        (catalog.CLIENT_FALLS, traffic.falls),
        (catalog.CATCHUP_RECORDS, traffic.catch_up_records),
    ):
        for reason, count in counts.items():
            samples.add(metric, count, *labels, reason)


def _collect_lag(behind: ClientsBehind, samples: MetricSamples) -> None:
    samples.add_counts(catalog.CLIENTS_BEHIND, behind.clients)
    samples.add_counts(catalog.CLIENTS_BEHIND_RECORDS, behind.records)
    samples.add_counts(catalog.CLIENTS_BEHIND_RECORDS_MAX, behind.max_records)


def _collect_reads(reader: str, fetcher: Fetcher, samples: MetricSamples) -> None:
    reads = fetcher.reads
    for topic, records in reads.records.items():
        samples.add(catalog.FETCHED_RECORDS, records, topic, reader)
        samples.add(catalog.FETCHED_BYTES, reads.bytes[topic], topic, reader)
    if reader == "catchup":  # it has each partition for a moment only
        return
    samples.add_counts(catalog.PARTITION_RECONNECTS, reads.reconnects)
    samples.add_counts(catalog.GAPS, reads.gaps)
    samples.add_counts(catalog.GAP_RECORDS, reads.gap_records)
    for topic, seconds in reads.ready_seconds.items():
        samples.add_histogram(catalog.PARTITION_READY_SECONDS, seconds, topic)


def _collect_partitions(shared_reads: SharedReads, samples: MetricSamples) -> None:
    now, total_bytes = shared_reads.fetcher.now(), 0
    for topic, shared_reads_of_topic in shared_reads.by_topic.items():
        topic_bytes = sum(read.log.bytes for read in shared_reads_of_topic)
        total_bytes += topic_bytes
        samples.add(catalog.CACHE_BYTES, topic_bytes, topic)
        for read in shared_reads_of_topic:
            _collect_partition(read.reader, now, samples)
    samples.add(catalog.MEMORY_BYTES, total_bytes, "cache")


def _collect_partition(reader: PartitionReader, now: float, samples: MetricSamples) -> None:
    topic, partition = reader.tp
    # As in `SharedReads.refresh_readiness`: a leader that froze does not report that it did.
    ready = reader.is_ready and now - reader.last_response_at <= STALE_S
    samples.add(catalog.PARTITION_READY, ready, topic, partition)
    samples.add(catalog.PARTITION_STATE, 1, topic, partition, reader.reported_state)
    if reader.cause is not None:
        samples.add(catalog.PARTITION_RECOVERING, 1, topic, partition, reader.cause)
    if reader.held_since is not None:
        held_s = max(0.0, now - reader.held_since)
        samples.add(catalog.PARTITION_OPEN_TRANSACTION_SECONDS, held_s, topic, partition)
    next_offset, end_offset = reader.position.offset, reader.last_stable_offset
    if next_offset is not None and end_offset >= 0:
        samples.add(
            catalog.PARTITION_LAG_RECORDS, max(0, end_offset - next_offset), topic, partition
        )


def _collect_requests(requests: BrokerRequestCounts, samples: MetricSamples) -> None:
    for api, seconds in requests.seconds.items():
        samples.add_histogram(catalog.KAFKA_REQUEST_SECONDS, seconds, api)
    samples.add_counts(catalog.KAFKA_REQUEST_FAILURES, requests.failures)
    samples.add(catalog.KAFKA_THROTTLED_SECONDS, requests.throttled_seconds)
    samples.add_counts(catalog.BROKER_CONNECTS, requests.connects)
    samples.add_counts(catalog.BROKER_CONNECT_FAILURES, requests.connect_failures)


def _collect_writes(producer: Producer, samples: MetricSamples) -> None:
    writes = producer.writes
    samples.add_counts(catalog.PRODUCED_RECORDS, writes.records)
    samples.add_counts(catalog.PRODUCED_BYTES, writes.bytes)
    for topic, seconds in writes.seconds.items():
        samples.add_histogram(catalog.PRODUCE_SECONDS, seconds, topic)
    samples.add(catalog.PRODUCE_WAITING_BYTES, producer.pending_bytes)
