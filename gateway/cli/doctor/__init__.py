"""Find out why records of a running gateway are slow or missing, for `gateway doctor`.

`observation` scrapes the metrics twice and asks the admin API. `kafka_rules` and `gateway_rules`
look for the evidence of each fault in that, without I/O. The faults, with their texts and their
order, are those of `gateway.telemetry.faults` that have a rule. `diagnosis` puts both together, and
formats the result. Start reading there.
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
    JsonOption,
    build_config_option,
    build_time_option,
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
        float, build_time_option("How long to observe the gateway, such as 5s or 1m.")
    ] = "5s",  # type: ignore[assignment]
    token: AdminTokenOption = None,
    as_json: JsonOption = False,
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

    from .diagnosis import diagnose, render_text, to_json
    from .observation import observe_gateway

    if not 1 <= interval <= 600:
        raise typer.BadParameter(f"{interval:g}s is not from 1s to 10m", param_hint="--interval")
    if url is not None and config is not None:
        raise typer.BadParameter("give either URL or --config")
    if url is None:
        address = find_admin_address(load(require_config_file(config)))
    else:
        address = AdminAddress.parse(url)
    diagnosis = diagnose(asyncio.run(observe_gateway(address, interval, build_headers(token))))
    typer.echo(json.dumps(to_json(diagnosis)) if as_json else render_text(diagnosis))
    if diagnosis.causes:
        raise typer.Exit(EXIT_FAILURE)
