"""The figures of a hub and its cluster, as metrics have them, read from what is there.

Costs by partitions and routes, never by clients: 1,000 partitions are 6 ms.
"""

from __future__ import annotations

from gateway.core.log.partition_reader import Reading, State
from gateway.hub.fanout.hub import Hub
from gateway.hub.fanout.hubs import Hubs
from gateway.hub.reads.feeds import STALE, Feeds
from gateway.kafka.fetch.fetcher import Fetcher
from gateway.kafka.produce.producer import Producer
from gateway.telemetry import catalog
from gateway.telemetry.figures import Figures
from gateway.telemetry.tallies import Requests
from gateway.telemetry.traffic import Behind, Traffic

LEADERLESS, RECOVERING = "leaderless", "recovering"


def read_all(hubs: Hubs, figures: Figures) -> None:
    """Add what there is to know of all hubs."""
    figures.add(catalog.WEBSOCKETS, len(hubs.leaving))
    figures.add(catalog.MEMORY_LIMIT, hubs.settings.memory)
    for hub in hubs:
        read(hub, figures)


def read(hub: Hub, figures: Figures) -> None:
    """Add what there is to know of a hub and its cluster. A route is of one cluster, so what is
    counted by routes goes without its name."""
    for traffic in hub.traffics:
        _traffic(traffic, figures)
    _behind(hub.behind, figures)
    figures = figures.of(hub.name)
    figures.count(catalog.REPLIES, hub.replies)
    figures.add(catalog.REACHABLE, hub.started and hub.cluster.reachable)
    if not hub.started:
        return
    for reader, fetcher in (("tail", hub.feeds.fetcher), ("catchup", hub.archive.fetcher)):
        _reads(reader, fetcher, figures)
    _partitions(hub.feeds, figures)
    for part, size in hub.memory.items():
        figures.add(catalog.MEMORY, size, part)
    figures.count(catalog.ARCHIVE, hub.archive.asked)
    figures.count(catalog.INVALID, hub.models.invalid)
    _requests(hub.cluster.connections.asked, figures)
    _writes(hub.publisher.producer, figures)


def _traffic(traffic: Traffic, figures: Figures) -> None:
    of = traffic.route, traffic.wire
    figures.add(catalog.CLIENTS, traffic.open, *of)
    figures.add(catalog.OPENED, traffic.opened, *of)
    figures.add(catalog.DELIVERIES, traffic.records, *of)
    figures.add(catalog.SENT, traffic.bytes, *of)
    figures.add(catalog.STALLS, traffic.stalls, *of)
    figures.observed(catalog.DELIVERY_LATENCY, traffic.latency, *of)
    figures.observed(catalog.TOKENS, traffic.tokens, *of)
    for metric, counts in (
        (catalog.ENDED, traffic.ended),
        (catalog.CLIENT_GAPS, traffic.gaps),
        (catalog.FALLS, traffic.falls),
        (catalog.CATCHUP_READS, traffic.read),
    ):
        for word, count in counts.items():
            figures.add(metric, count, *of, word)


def _behind(behind: Behind, figures: Figures) -> None:
    figures.count(catalog.BEHIND, behind.clients)
    figures.count(catalog.BEHIND_RECORDS, behind.records)
    figures.count(catalog.BEHIND_MOST, behind.most)


def _reads(reader: str, fetcher: Fetcher, figures: Figures) -> None:
    reads = fetcher.reads
    for topic, records in reads.records.items():
        figures.add(catalog.FETCHED, records, topic, reader)
        figures.add(catalog.FETCHED_BYTES, reads.bytes[topic], topic, reader)
    if reader == "catchup":  # it has partitions for moments only
        return
    figures.count(catalog.RECONNECTS, reads.reconnects)
    figures.count(catalog.GAPS, reads.gaps)
    figures.count(catalog.GAP_RECORDS, reads.lost)
    for topic, seconds in reads.ready.items():
        figures.observed(catalog.READY_SECONDS, seconds, topic)


def _partitions(feeds: Feeds, figures: Figures) -> None:
    now, kept = feeds.fetcher.now(), 0
    for topic, some in feeds.by_topic.items():
        held = sum(feed.log.bytes for feed in some)
        kept += held
        figures.add(catalog.CACHE, held, topic)
        for feed in some:
            _partition(feed.reading, now, figures)
    figures.add(catalog.MEMORY, kept, "cache")


def _partition(reading: Reading, now: float, figures: Figures) -> None:
    topic, partition = reading.tp
    ready = reading.is_ready and now - reading.heard_at <= STALE
    figures.add(catalog.READY, ready, topic, partition)
    figures.add(catalog.STATE, 1, topic, partition, _state(reading))
    if reading.cause is not None:
        figures.add(catalog.RECOVERING, 1, topic, partition, reading.cause)
    at, end = reading.place.offset, reading.last_stable_offset
    if at is not None and end >= 0:
        figures.add(catalog.LAG, max(0, end - at), topic, partition)


def _state(reading: Reading) -> str:
    if reading.leader is None:
        return LEADERLESS
    if reading.cause is not None and reading.state is State.STREAMING:
        return RECOVERING
    return reading.state.value


def _requests(requests: Requests, figures: Figures) -> None:
    for api, seconds in requests.seconds.items():
        figures.observed(catalog.REQUEST_SECONDS, seconds, api)
    figures.count(catalog.REQUEST_FAILURES, requests.failures)
    figures.count(catalog.CONNECTS, requests.connects)
    figures.count(catalog.CONNECT_FAILURES, requests.refused)


def _writes(producer: Producer, figures: Figures) -> None:
    writes = producer.writes
    figures.count(catalog.PRODUCED, writes.records)
    figures.count(catalog.PRODUCED_BYTES, writes.bytes)
    for topic, seconds in writes.seconds.items():
        figures.observed(catalog.PRODUCE_SECONDS, seconds, topic)
    figures.add(catalog.PRODUCE_WAITING, producer.waiting)
