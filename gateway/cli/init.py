"""`gateway init`: write a first configuration."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gateway.errors import ConfigError, GatewayError

from .options import (
    DEFAULT_CONFIG_FILE,
    DEFAULT_SERVERS,
    OriginsOption,
    ServersOption,
    is_given,
    split_list,
)
from .starter_config import GuardPreset, SecurityPreset, StarterConfig

if TYPE_CHECKING:
    from gateway.config import Kafka

MAX_SUGGESTED_TOPICS = 20  # of the cluster, that a prompt lists


def init(
    ctx: typer.Context,
    file: Annotated[
        Path, typer.Argument(metavar="FILE", dir_okay=False, help="The file to write.")
    ] = DEFAULT_CONFIG_FILE,
    servers: ServersOption = DEFAULT_SERVERS,
    security: Annotated[
        SecurityPreset, typer.Option(help="How the cluster is secured.")
    ] = SecurityPreset.NONE,
    topics: Annotated[
        list[str] | None,
        typer.Option(
            "--topic",
            "-t",
            metavar="TOPIC",
            help="A topic to stream at /events/TOPIC; repeatable.  [default: all of the cluster]",
        ),
    ] = None,
    guard: Annotated[
        GuardPreset,
        typer.Option(help="Who may connect: anyone, users of a login (jwt), or you (inline)."),
    ] = GuardPreset.NONE,
    issuer: Annotated[
        str | None,
        typer.Option(
            metavar="URL", help="With --guard jwt: the issuer of tokens, with OIDC discovery."
        ),
    ] = None,
    audience: Annotated[
        str, typer.Option(metavar="NAME", help="With --guard jwt: the audience of tokens.")
    ] = "gateway",
    origins: OriginsOption = None,
    port: Annotated[
        int, typer.Option(min=0, max=65535, metavar="N", help="Port to listen on.")
    ] = 8080,
    force: Annotated[bool, typer.Option("--force", help="Replace the file if it exists.")] = False,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Do not ask; take defaults for what is not given.")
    ] = False,
) -> None:
    """Write a first configuration for a cluster and its topics.

    On a terminal it asks for what is not given. The cluster is asked for its topics; a secret is
    never written: the file refers to variables such as ${env.KAFKA_PASSWORD}.

    \b
    gateway init
    gateway init --servers broker:9093 --security scram-512 --topic orders --yes
    gateway init --guard jwt --issuer https://login.example --origin https://shop.example
    """
    if file.exists() and not force:
        raise GatewayError(f"{file} exists; write another file, or replace it by --force")
    ask = _Questions(ctx, is_asking=sys.stdin.isatty() and not yes)
    config = StarterConfig(
        servers=ask.text("servers", "Kafka brokers", servers),
        security=SecurityPreset(ask.choice("security", "Security", security, SecurityPreset)),
        port=port,
    )
    config = replace(config, topics=topics or _choose_topics(ask, config))
    kind = GuardPreset(ask.choice("guard", "Who may connect", guard, GuardPreset))
    if kind is GuardPreset.JWT and issuer is None:
        if not ask.is_asking:
            raise typer.BadParameter("--guard jwt needs it", param_hint="--issuer")
        issuer = ask.text("issuer", "Issuer of tokens (URL)", "https://login.example")
    if origins is None:
        text = ask.text("origins", "Origin of your pages, if it is another (or -)", "-")
        origins = [] if text == "-" else split_list(text)
    config = replace(
        config, guard=kind, issuer=issuer or "", audience=audience, origins=tuple(origins)
    )
    _validate(config)
    file.write_text(config.to_yaml(), "utf-8")
    _print_next_steps(file, config)


class _Questions:
    """Asks for values that the command line does not have, if it may."""

    def __init__(self, ctx: typer.Context, *, is_asking: bool) -> None:
        self._ctx = ctx
        self.is_asking = is_asking

    def text(self, parameter: str, question: str, default: str) -> str:
        """Return the answer to a question; the default if it was given or is not asked for."""
        if not self.is_asking or is_given(self._ctx, parameter, in_environment=True):
            return default
        return str(typer.prompt(question, default=default, err=True)).strip()

    def choice(self, parameter: str, question: str, default: str, choices: Any) -> str:
        """Return the chosen one of some values; asks again until it is one of them."""
        names = [str(each) for each in choices]
        while True:
            answer = self.text(parameter, f"{question} ({', '.join(names)})", str(default))
            if answer in names:
                return answer
            typer.echo(f"'{answer}' is none of them", err=True)


def _choose_topics(ask: _Questions, config: StarterConfig) -> Sequence[str]:
    """Return the topics of the cluster, or those of them that are chosen.

    Raises:
        GatewayError: The cluster cannot be asked, or has none, and nobody else can be asked.
    """
    try:
        found = asyncio.run(_list_topics(_load_kafka(config)))
    except GatewayError as exc:
        reason = exc.problems[0].split(": ", 1)[-1] if isinstance(exc, ConfigError) else str(exc)
        if not ask.is_asking:
            raise GatewayError(f"{reason}; or give --topic TOPIC, to ask no broker") from None
        typer.echo(f"The cluster cannot be asked for its topics: {reason}", err=True)
        found = []
    if not ask.is_asking:
        if not found:
            raise GatewayError(f"{config.servers} has no topics yet; give --topic TOPIC")
        return found
    suggested = ",".join(found[:MAX_SUGGESTED_TOPICS]) or "orders"
    return split_list(ask.text("topics", "Topics to stream", suggested))


def _load_kafka(config: StarterConfig) -> Kafka:
    from gateway.config import loads

    kafka = loads(config.to_kafka_yaml()).clusters[""]
    if kafka.servers == "embedded":
        raise GatewayError("an embedded Kafka has only the topics that its file lists")
    return kafka


async def _list_topics(kafka: Kafka) -> list[str]:
    from .kafka_connection import open_cluster
    from .topics.topic_report import INTERNAL_PREFIX

    async with open_cluster(kafka) as cluster:
        names = await cluster.list_topics()
    return sorted(name for name in names if not name.startswith(INTERNAL_PREFIX))


def _validate(config: StarterConfig) -> None:
    """Check a configuration before it is written, whatever its variables will be.

    Raises:
        typer.BadParameter: A value is wrong.
    """
    from gateway.config import loads

    # Files that variables will name cannot be checked yet, so those options are left out.
    without_files = replace(
        config,
        security=SecurityPreset.TLS if config.security is SecurityPreset.MTLS else config.security,
    )
    environ = dict.fromkeys(config.variables, "x") | {"KAFKA_TOKEN_URL": "https://login.example"}
    try:
        loads(without_files.to_yaml(), environ=environ)
    except ConfigError as exc:
        raise typer.BadParameter(exc.problems[0].split(": ", 1)[-1]) from None


def _print_next_steps(file: Path, config: StarterConfig) -> None:
    option = "" if file == DEFAULT_CONFIG_FILE else f" -c {file}"
    typer.echo(f"wrote {file}: {len(config.topics)} routes, {', '.join(config.topics)}")
    if config.variables:
        typer.echo(f"set the variables: {', '.join(config.variables)}")
    typer.echo(f"check it:  gateway check{option} --cluster")
    typer.echo(f"start it:  gateway run{option}")
