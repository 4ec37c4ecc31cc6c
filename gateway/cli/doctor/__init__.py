"""Find out why records of a running gateway are slow or missing, for `gateway doctor`.

`observation` scrapes the metrics twice and asks the admin API. `diagnosis` applies its rules to
that, in order, and formats the result. A rule is a name, a title, advice, and a function that
returns the evidence; the rules are in `kafka_rules` and `gateway_rules`, and do no I/O.

Start reading in `diagnosis`, which lists the rules.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from gateway.cli.admin import (
    AdminAddress,
    AdminArgument,
    AdminTokenOption,
    build_headers,
    find_admin_address,
)
from gateway.cli.commands import EXIT_FAILURE
from gateway.cli.options import (
    CONFIG_HELP,
    DEFAULT_CONFIG_NAME,
    build_config_option,
    require_config_file,
)


def doctor(
    url: AdminArgument = None,
    config: Annotated[
        Path | None,
        build_config_option(
            f"{CONFIG_HELP} Its section admin says where to ask.  [default: {DEFAULT_CONFIG_NAME}]"
        ),
    ] = None,
    interval: Annotated[
        str,
        typer.Option(metavar="TIME", help="How long to observe the gateway, such as 5s or 1m."),
    ] = "5s",
    token: AdminTokenOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Find out why records of a running gateway are slow or missing.

    The gateway is observed for some seconds, by its metrics and its admin API. The causes are
    printed with the evidence and what to change, the likeliest first. Nothing is changed.

    \b
    gateway doctor http://127.0.0.1:9901
    gateway doctor -c gateway.yaml --interval 30s
    gateway doctor --json | jq -r '.causes[0].name'
    """
    import asyncio

    from gateway.config import load
    from gateway.config.types.units import parse_duration

    from .diagnosis import diagnose, render_text, to_json
    from .observation import observe_gateway

    try:
        seconds = parse_duration(interval)
    except ValueError as exc:
        raise typer.BadParameter(str(exc), param_hint="--interval") from None
    if not 1 <= seconds <= 600:
        raise typer.BadParameter(f"{interval} is not from 1s to 10m", param_hint="--interval")
    if url is not None and config is not None:
        raise typer.BadParameter("give either URL or --config")
    if url is None:
        address = find_admin_address(load(require_config_file(config)))
    else:
        address = AdminAddress.parse(url)
    diagnosis = diagnose(asyncio.run(observe_gateway(address, seconds, build_headers(token))))
    typer.echo(json.dumps(to_json(diagnosis)) if as_json else render_text(diagnosis))
    if diagnosis.causes:
        raise typer.Exit(EXIT_FAILURE)
