"""Write a first configuration, for `gateway init`.

The command asks for what its options do not give; `starter_config` makes the file of the answers.
"""

from __future__ import annotations

import asyncio
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from gateway.errors import ConfigError, GatewayError

from .options import (
    DEFAULT_CONFIG_FILE,
    DEFAULT_SERVERS,
    OriginsOption,
    ServersOption,
    find_config_file,
    is_given,
    split_list,
)
from .output import replace_file, require_writable
from .starter_config import GuardPreset, SecurityPreset, StarterConfig

T = TypeVar("T")
E = TypeVar("E", bound=StrEnum)

# What a single answer is checked in, with the default of the issuer.
_EXAMPLE = StarterConfig(
    DEFAULT_SERVERS, topics=("orders",), issuer="https://login.example", audience="gateway"
)

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
            metavar="URL", help="The issuer of tokens, with OIDC discovery; means --guard jwt."
        ),
    ] = None,
    audience: Annotated[
        str, typer.Option(metavar="NAME", help="The audience of tokens; means --guard jwt.")
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
    require_writable(file, is_new=not force)
    kind = _find_guard(ctx, guard)
    config = StarterConfig(
        servers=servers,
        security=security,
        topics=tuple(topics or ()),
        guard=kind or GuardPreset.NONE,
        issuer=issuer or "",
        audience=audience,
        origins=tuple(origins or ()),
        port=port,
    )
    ask = _Questions(ctx, is_asking=sys.stdin.isatty() and not yes)
    if kind is GuardPreset.JWT and issuer is None and not ask.is_asking:
        raise typer.BadParameter("a guard of type jwt needs it", param_hint="--issuer")
    _validate(
        replace(
            config,
            topics=config.topics or _EXAMPLE.topics,
            issuer=_EXAMPLE.issuer if issuer is None else issuer,
        )
    )
    config = replace(
        config,
        servers=ask.text(
            "servers", "Kafka brokers", servers, lambda text: _check_answer(text, servers=text)
        ),
        security=ask.choice("security", "Security", security, SecurityPreset),
    )
    if not config.topics:
        config = replace(config, topics=tuple(_choose_topics(ask, config)))
    if kind is None:
        kind = ask.choice("guard", "Who may connect", guard, GuardPreset)
        config = replace(config, guard=kind)
    if kind is GuardPreset.JWT and issuer is None:
        answer = ask.text(
            "issuer",
            "Issuer of tokens (URL)",
            _EXAMPLE.issuer,
            lambda text: _check_answer(text, guard=GuardPreset.JWT, issuer=text),
        )
        config = replace(config, issuer=answer)
    if origins is None:
        question = "Origin of your pages, if it is another (or -)"
        config = replace(config, origins=ask.text("origins", question, "-", _convert_origins))
    _validate(config)
    replace_file(file, config.to_yaml())
    _print_next_steps(file, config)


def _find_guard(ctx: typer.Context, guard: GuardPreset) -> GuardPreset | None:
    given = [f"--{name}" for name in ("issuer", "audience") if is_given(ctx, name)]
    if not is_given(ctx, "guard"):
        return GuardPreset.JWT if given else None
    if given and guard is not GuardPreset.JWT:
        raise typer.BadParameter(
            f"is for --guard jwt, not for --guard {guard}", param_hint=given[0]
        )
    return guard


class _Questions:
    def __init__(self, ctx: typer.Context, *, is_asking: bool) -> None:
        self._ctx = ctx
        self.is_asking = is_asking

    def text(self, parameter: str, question: str, default: str, convert: Callable[[str], T]) -> T:
        """Return the answer to a question, which is asked again if `convert` refuses it."""
        if not self.is_asking or is_given(self._ctx, parameter, in_environment=True):
            return convert(default)
        answer: T = typer.prompt(
            question, default=default, err=True, value_proc=lambda text: convert(text.strip())
        )
        return answer

    def choice(self, parameter: str, question: str, default: E, choices: type[E]) -> E:
        def convert(answer: str) -> E:
            try:
                return choices(answer)
            except ValueError:
                raise typer.BadParameter(f"'{answer}' is none of them") from None

        return self.text(parameter, f"{question} ({', '.join(choices)})", str(default), convert)


def _check_answer(answer: T, **changes: Any) -> T:
    _validate(replace(_EXAMPLE, **changes))
    return answer


def _convert_topics(text: str) -> Sequence[str]:
    topics = tuple(dict.fromkeys(split_list(text)))
    if not topics:
        raise typer.BadParameter("there is no name; give one topic or several, with commas")
    return _check_answer(topics, topics=topics)


def _convert_origins(text: str) -> Sequence[str]:
    origins = () if text == "-" else tuple(split_list(text))
    return _check_answer(origins, origins=origins)


def _choose_topics(ask: _Questions, config: StarterConfig) -> Sequence[str]:
    try:
        found = asyncio.run(_list_topics(config))
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
    return ask.text("topics", "Topics to stream", suggested, _convert_topics)


async def _list_topics(config: StarterConfig) -> list[str]:
    from gateway.config import loads
    from gateway.kafka.client.outages import OptionNames

    from .kafka_connection import open_cluster
    from .topics.topic_report import INTERNAL_PREFIX

    kafka = loads(config.to_kafka_yaml()).clusters[""]
    if kafka.servers == "embedded":
        raise GatewayError("an embedded Kafka has only the topics that its file lists")
    async with open_cluster(kafka, names=OptionNames(servers="--servers")) as cluster:
        names = await cluster.list_topics()
    return sorted(name for name in names if not name.startswith(INTERNAL_PREFIX))


def _validate(config: StarterConfig) -> None:
    """Check a configuration before it is written, whatever its variables will be."""
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
    typer.echo(f"wrote {file}: routes of {', '.join(config.topics)}")
    if config.variables:
        typer.echo(f"set the variables: {', '.join(config.variables)}")
    if config.optional_variables:
        typer.echo(
            f"and {', '.join(config.optional_variables)}, the path of a PEM file, if the brokers' "
            "certificates are not of a public authority"
        )
    print_next_commands(file)


def print_next_commands(file: Path) -> None:
    """Print the commands for a configuration that was written; they name it if they have to."""
    try:
        found = find_config_file()
    except typer.BadParameter:  # GATEWAY_CONFIG names no file
        found = None
    is_found = found is not None and found.resolve() == file.resolve()
    option = "" if is_found else f" -c {shlex.quote(str(file))}"
    typer.echo(f"check it:  gateway check{option} --cluster")
    typer.echo(f"start it:  gateway run{option}")
