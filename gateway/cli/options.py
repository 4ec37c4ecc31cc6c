"""Options that several commands share, and the settings that they name."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gateway.errors import GatewayError

if TYPE_CHECKING:
    from gateway.config import Kafka

CONFIG_HELP = "The configuration, in YAML."
DEFAULT_SERVERS = "localhost:9092"


def build_config_option(help: str) -> Any:
    """Return --config for `Annotated`: the file of a configuration, which must exist."""
    return typer.Option("--config", "-c", metavar="FILE", exists=True, dir_okay=False, help=help)


ConfigFileOption = Annotated[Path, build_config_option(CONFIG_HELP)]
ServersOption = Annotated[
    str,
    typer.Option(
        "--servers",
        "-s",
        envvar="GATEWAY_KAFKA_SERVERS",
        help="Kafka brokers: HOST:PORT, separated by commas.",
    ),
]
KafkaConfigOption = Annotated[
    Path | None,
    build_config_option("Take servers, TLS and SASL from a gateway's configuration."),
]


def load_kafka(file: Path, topics: Sequence[str]) -> Kafka:
    """Return the settings of the cluster that lists these topics.

    Args:
        file: The configuration. If it has one cluster, that need not list the topics.
        topics: Names of topics.

    Raises:
        ConfigError: The configuration is wrong.
        GatewayError: No cluster or several clusters match, or the Kafka is the embedded one.
    """
    from gateway.config import load

    settings = load(file)
    names = settings.find_cluster_names(topics)
    if len(names) != 1:
        which = " and ".join(names) if names else f"none of {', '.join(settings.clusters)}"
        raise GatewayError(f"{', '.join(topics)}: {which} of {file} lists it; give --servers")
    kafka = settings.clusters[names[0]]
    if kafka.servers == "embedded":
        raise GatewayError(f"the Kafka of {file} is embedded in the gateway; give --servers")
    return kafka


def split_list(text: str) -> list[str]:
    """Return the items of a list that is separated by commas, without spaces and empty ones."""
    return [each.strip() for each in text.split(",") if each.strip()]
