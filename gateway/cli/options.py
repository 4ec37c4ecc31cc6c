"""Options that several commands have."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gateway.errors import GatewayError

if TYPE_CHECKING:
    from gateway.config import Kafka

DEFAULT_SERVERS = "localhost:9092"

ServersOption = Annotated[
    str,
    typer.Option("--servers", "-s", envvar="GATEWAY_KAFKA_SERVERS", help="HOST:PORT, with commas."),
]
KafkaConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--config",
        "-c",
        metavar="FILE",
        exists=True,
        dir_okay=False,
        help="Take servers, TLS and SASL from a gateway's configuration.",
    ),
]


def load_kafka(file: Path, topics: Sequence[str]) -> Kafka:
    """The Kafka of a configuration; of several, the one that lists these topics. Raises
    GatewayError where that is not one, or one within the gateway."""
    from gateway.config import load

    settings = load(file)
    found = settings.find_cluster_names(topics)
    if len(found) != 1:
        which = " and ".join(found) if found else f"none of {', '.join(settings.clusters)}"
        raise GatewayError(f"{', '.join(topics)}: {which} of {file} lists it; give --servers")
    kafka = settings.clusters[found[0]]
    if kafka.servers == "embedded":
        raise GatewayError(f"the Kafka of {file} is embedded in the gateway; give --servers")
    return kafka


def split_list(text: str) -> list[str]:
    """What stands between commas."""
    return [each.strip() for each in text.split(",") if each.strip()]
