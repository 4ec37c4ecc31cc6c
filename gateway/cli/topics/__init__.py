"""`gateway topics`: list the topics of a Kafka, or describe one.

`topic_report` asks the brokers, and this module has the command.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from gateway.cli.kafka_connection import KafkaSource, open_source, require_topic_name
from gateway.cli.options import (
    DEFAULT_SERVERS,
    JsonOption,
    KafkaConfigOption,
    ServersOption,
    complete_topic,
)
from gateway.cli.output import escape_controls, format_table

if TYPE_CHECKING:
    from .topic_report import TopicDetails, TopicSummary


def topics(
    ctx: typer.Context,
    name: Annotated[
        str | None,
        typer.Argument(
            show_default=False,
            help="The topic to describe; all are listed without it.",
            autocompletion=complete_topic,
        ),
    ] = None,
    everything: Annotated[
        bool,
        typer.Option("--all", help="Also list Kafka's own topics, such as __consumer_offsets."),
    ] = False,
    as_json: JsonOption = False,
    servers: ServersOption = DEFAULT_SERVERS,
    config: KafkaConfigOption = None,
) -> None:
    """List the topics of a Kafka, or describe one.

    RECORDS counts offsets: a compacted topic, or one with transactions, has fewer records.

    For one topic the command prints leaders, replicas in sync, offsets, how fast records arrive (it
    looks for two seconds), and its newest record, decoded as the configuration says.

    \b
    gateway topics --servers localhost:9092
    gateway topics orders -c gateway.yaml
    gateway topics --json | jq -r 'select(.partitions > 12).name'
    """
    if name is not None:
        require_topic_name(name)
    source = KafkaSource.find(ctx, servers, config)
    if name is None:
        summaries = asyncio.run(_list_topics(source, everything))
        lines = (json.dumps(asdict(each)) for each in summaries)
        _print_lines(lines if as_json else _format_summaries(summaries))
        return
    details = asyncio.run(_describe_topic(source, name))
    _print_lines([json.dumps(details.to_json())] if as_json else _format_details(details))


async def _list_topics(source: KafkaSource, everything: bool) -> Sequence[TopicSummary]:
    from .topic_report import list_topics

    async with open_source(source, (), "topics") as cluster:
        return await list_topics(cluster, include_internal=everything)


async def _describe_topic(source: KafkaSource, name: str) -> TopicDetails:
    from .topic_report import SampleDecoder, describe_topic

    decoder = SampleDecoder.create(source, name)
    async with open_source(source, [name], "topics") as cluster:
        return await describe_topic(cluster, name, decoder)


def _print_lines(lines: Iterable[str]) -> None:
    for line in lines:
        typer.echo(escape_controls(line))


def _format_summaries(summaries: Sequence[TopicSummary]) -> Iterator[str]:
    if not summaries:
        yield "no topics; `gateway produce TOPIC` creates one, if the brokers allow it"
        return
    rows = [("TOPIC", "PARTITIONS", "REPLICAS", "RECORDS")]
    rows += [
        (each.name, str(each.partitions), str(each.replicas), _format_number(each.records))
        for each in summaries
    ]
    yield from format_table(rows)


def _format_details(details: TopicDetails) -> Iterator[str]:
    yield f"topic    {details.name}"
    yield f"cleanup  {details.cleanup_policy or 'unknown'}"
    rate = f"{details.rate:.1f}/s in the last {details.seconds:.1f} s"
    yield f"records  {_format_number(details.records)}, {rate}"
    yield ""
    rows = [("PARTITION", "LEADER", "IN SYNC", "REPLICAS", "START", "END")]
    rows += [
        (
            str(each.partition),
            "none" if each.leader < 0 else str(each.leader),
            ",".join(map(str, each.in_sync)) or "none",
            ",".join(map(str, each.replicas)),
            _format_number(each.start),
            _format_number(each.end),
        )
        for each in details.partitions
    ]
    yield from format_table(rows)
    if details.sample is not None:
        yield ""
        sample = details.sample
        yield f"newest   {sample.time}, partition {sample.partition}, offset {sample.offset}"
        yield f"  key    {_format_text(sample.key)}"
        yield f"  value  {_format_text(sample.value)}"
        yield from (f"  {name}: {_format_text(value)}" for name, value in sample.headers)


def _format_number(number: int | None) -> str:
    return "unknown" if number is None else str(number)


def _format_text(text: str | None) -> str:
    return "null" if text is None else text
