"""`gateway check` and `gateway config`: find what is wrong with a configuration, and show it."""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlsplit

import typer

from .commands import EXIT_FAILURE
from .options import ConfigFileArgument, build_config_option, require_config_file
from .output import escape_controls, format_table, paint, select_colours, show_progress

if TYPE_CHECKING:
    from gateway.config import Settings

    from .cluster_check import CheckProgress, Finding, FrontAddress


_STATE_TONES = {"ok": "good", "warning": "warn", "fails": "bad"}


def check(
    file: ConfigFileArgument = None,
    config_file: Annotated[
        Path | None, build_config_option("The same as FILE, as the other commands have it.")
    ] = None,
    schema: Annotated[
        bool, typer.Option("--schema", help="Print the JSON Schema of configurations, for editors.")
    ] = False,
    print_settings: Annotated[
        bool, typer.Option("--print", help="Print the configuration with all defaults, as YAML.")
    ] = False,
    cluster: Annotated[
        bool,
        typer.Option(
            "--cluster",
            help="Also try brokers, topics, permissions, guards, registries and certificates.",
        ),
    ] = False,
    front: Annotated[
        str | None,
        typer.Option(
            "--front",
            metavar="URL",
            help="With --cluster: also ask the running gateway through the proxy at this URL, and "
            "say what the proxy does wrong.",
        ),
    ] = None,
    ca: Annotated[
        Path | None,
        typer.Option("--ca", metavar="FILE", help="With --front: who signed its certificate."),
    ] = None,
    idle: Annotated[
        float | None,
        typer.Option(
            "--idle",
            metavar="SECONDS",
            min=1.0,
            max=100.0,
            help="With --front: how long idle streams must last. Default: as long as the longest "
            "heartbeat of a route, and WebSockets 20 seconds.",
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="With --cluster: print one JSON object per line.")
    ] = False,
) -> None:
    """Print everything that is wrong with a configuration.

    Nothing is started. Each problem is one line, FILE:LINE:COLUMN: what is wrong; what to do. A
    warning is about something that works, but maybe not as intended; with warnings alone the exit
    code is 0.

    With --cluster the command connects to everything that the configuration names, as the gateway
    would, and writes nothing. With --front it also asks the running gateway through the proxy in
    front of it: whether that buffers events, cuts idle streams, drops headers, compresses again,
    hides the client's address, caps the size of headers, or blocks WebSockets.

    The exit code is 1 if something fails, and 78 if the configuration is wrong.

    \b
    gateway check                           # gateway.yaml of this folder
    gateway check gateway.yaml --cluster
    gateway check gateway.yaml --cluster --front https://stream.example.com
    gateway check -c gateway.yaml --print   # with all defaults, and in the long form
    gateway check --schema > gateway.schema.json
    """
    from gateway import config

    if file is not None and config_file is not None:
        raise typer.BadParameter("give either FILE or --config")
    file = file or config_file
    if schema and file is not None:
        raise typer.BadParameter("give either FILE or --schema")
    if cluster and (schema or print_settings):
        raise typer.BadParameter("takes neither --schema nor --print", param_hint="--cluster")
    if as_json and not cluster:
        raise typer.BadParameter("is for --cluster", param_hint="--json")
    front_address = _build_front_address(front, ca, idle, cluster=cluster)
    if schema:
        typer.echo(json.dumps(config.build_json_schema(), indent=2))
        return
    file = require_config_file(file)
    load_warnings: list[str] = []
    settings = config.load(file, warn=load_warnings.append)
    if settings.pipelines is not None:
        from gateway.pipeline.check import raise_for_problems

        raise_for_problems(file, settings)
    for warning in load_warnings:
        typer.echo(f"warning: {warning}", err=True)
    for warning in config.iter_warnings(settings):
        typer.echo(f"{file}: warning: {warning}", err=True)
    if cluster:
        _check_cluster(file, settings, front_address, as_json=as_json)
    elif print_settings:
        typer.echo(config.dumps(settings), nl=False)
    else:
        typer.echo(f"{file}: ok")


def _build_front_address(
    url: str | None, ca: Path | None, idle_s: float | None, *, cluster: bool
) -> FrontAddress | None:
    if url is None:
        for value, option in ((ca, "--ca"), (idle_s, "--idle")):
            if value is not None:
                raise typer.BadParameter("is for --front", param_hint=option)
        return None
    if not cluster:
        raise typer.BadParameter("is for --cluster", param_hint="--front")
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        example = "https://stream.example.com"
        raise typer.BadParameter(f"give a URL such as {example}", param_hint="--front")
    from gateway.config.types.address import create_trusting_context

    from .cluster_check import FrontAddress

    try:
        create_trusting_context(ca)
    except ValueError as exc:
        raise typer.BadParameter(str(exc), param_hint="--ca") from None
    return FrontAddress(url, ca, idle_s)


def _check_cluster(
    file: Path, settings: Settings, front: FrontAddress | None, *, as_json: bool
) -> None:
    from .cluster_check import FindingState, check_cluster

    with show_progress() as show:

        def update(steps: CheckProgress) -> None:
            waiting = steps.pending[0] if steps.pending else ""
            show(steps.done, steps.started, f"{steps.done}/{steps.started} {waiting}")

        findings = check_cluster(settings, update, front)
    counts = Counter(finding.state for finding in findings)
    failed = counts[FindingState.FAILS]
    for finding in findings:
        typer.echo(json.dumps(finding._asdict()) if as_json else _format_finding(finding))
    if not as_json:
        typer.echo(f"{file}: {f'{failed} of {len(findings)} fail' if failed else 'ok'}")
    if failed:
        raise typer.Exit(EXIT_FAILURE)


def _format_finding(finding: Finding) -> str:
    """Return a finding as a line. Its text may come from a server, so it is escaped."""
    state = paint(f"{finding.state:<8}", _STATE_TONES[finding.state], select_colours(sys.stdout))
    return f"{state} {escape_controls(finding.subject)}: {escape_controls(finding.detail)}"


HEADINGS = ("VARIABLE", "TYPE", "DEFAULT", "DESCRIPTION")


def config(
    file: ConfigFileArgument = None,
    env: Annotated[
        bool, typer.Option("--env", help="Print the environment variables that set options.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="With --env: print one JSON object per line.")
    ] = False,
) -> None:
    """Print the configuration in effect, or the variables that set it.

    An option is set by GATEWAY_ and its path in capitals, with two underscores between the levels
    and one between the words of a name: listen.drainTimeout is GATEWAY_LISTEN__DRAIN_TIMEOUT. A
    name of the file is a level, too: GATEWAY_GUARDS__LOGIN__ISSUER. Lists have commas; what is YAML
    in the table is written as in the file: GATEWAY_ROUTES='[{path: /orders, topic: orders}]'.

    The command line overrides variables, and these override the file. An empty variable counts as
    not set.

    \b
    gateway config                        # gateway.yaml of this folder, and what overrides it
    gateway config --env | grep LISTEN
    GATEWAY_LISTEN__PORT=9000 gateway run
    """
    from gateway import config as configuration
    from gateway.config.source.problems import format_loc

    if as_json and not env:
        raise typer.BadParameter("is for --env", param_hint="--json")
    if env:
        variables = configuration.list_variables()
        rows = [(each.name, each.type, each.default or "-", each.description) for each in variables]
        lines = (json.dumps(each._asdict()) for each in variables)
        typer.echo("\n".join(lines if as_json else format_table([HEADINGS, *rows])))
        return
    file = require_config_file(file)
    settings = configuration.load(file)
    typer.echo(f"# {file}")
    values = settings.model_dump(mode="json", by_alias=True)
    for loc, _, variable in configuration.read_variables(os.environ, values)[0]:
        typer.echo(f"# {format_loc(loc)} by {variable}")
    typer.echo(configuration.dumps(settings), nl=False)
