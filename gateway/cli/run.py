"""`gateway run`: serve the routes of a configuration, or streams of topics without one."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gateway.errors import ConfigError

from .options import (
    DEFAULT_SERVERS,
    MISSING_CONFIG_MESSAGE,
    SERVERS_VARIABLES,
    DebugOption,
    HostOption,
    LogFormatOption,
    OptionalConfigOption,
    OriginsOption,
    PortOption,
    ServersOption,
    begin_log,
    complete_topic,
    find_config_file,
    is_given,
)
from .output import remove_file, replace_file
from .starter_config import QuickStart

if TYPE_CHECKING:
    from gateway.config import Settings


def run(
    ctx: typer.Context,
    config: OptionalConfigOption = None,
    servers: ServersOption = DEFAULT_SERVERS,
    topics: Annotated[
        list[str] | None,
        typer.Option(
            "--topic",
            "-t",
            metavar="TOPIC",
            help="Without a configuration: stream this topic at /events/TOPIC; repeatable.",
            autocompletion=complete_topic,
        ),
    ] = None,
    origins: OriginsOption = None,
    host: HostOption = None,
    port: PortOption = None,
    workers: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=256,
            metavar="N",
            help="Processes that share the port; overrides listen.workers.",
        ),
    ] = None,
    pid_file: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH", help="Keep the process id in this file while it runs.", dir_okay=False
        ),
    ] = None,
    print_config: Annotated[
        bool, typer.Option("--print-config", help="With --topic: print the configuration, and end.")
    ] = False,
    log_format: LogFormatOption = None,
    debug: DebugOption = None,
) -> None:
    """Serve the routes of a configuration, or streams of topics.

    It serves until SIGTERM or ^C. To begin, --topic is enough. --print-config prints the same as a
    configuration, to keep and extend. The command line overrides environment variables (see
    `gateway config --env`), and these override the file.

    SIGHUP makes it read the configuration again (see `gateway reload`).

    \b
    gateway run --servers localhost:9092 --topic orders --origin http://localhost:5173
    gateway run --topic orders --print-config > gateway.yaml
    gateway run                                 # gateway.yaml of this folder
    gateway run -c gateway.yaml --workers 4     # one per core
    gateway run -c gateway.yaml --debug kafka   # why is this partition late?
    gateway run -c gateway.yaml --debug kafka.fetch --debug hub.fanout
    gateway run -c gateway.yaml --pid-file /run/gateway.pid     # for `gateway reload`
    """
    options: dict[str, Any] = {
        "listen.host": host,
        "listen.port": port,
        "listen.workers": workers,
        "kafka.servers": servers if is_given(ctx, "servers") else None,
        "telemetry.logs.format": None if log_format is None else log_format.value,
    }
    if print_config and not topics:
        raise typer.BadParameter("is for --topic", param_hint="--print-config")
    if origins:
        options["listen.access-control.policy"] = "cross-origin"
        options["listen.access-control.allow.origins"] = origins
    if not print_config:
        begin_log(log_format, None if topics else find_config_file(config))
    if not topics:
        _serve(_choose_loader(config, options), pid_file, debug)
        return
    if config is not None:
        raise typer.BadParameter("give either --config or --topic")
    start = QuickStart(tuple(dict.fromkeys(topics)), options)
    try:
        start.load({})  # the command line alone, so that an error in it is one of usage
    except ConfigError as exc:
        raise typer.BadParameter(exc.problems[0].split(": ", 1)[-1]) from None
    if print_config:
        typer.echo(start.to_yaml(start.load()), nl=False)
        return
    _serve(start.load, pid_file, debug, start)


def _choose_loader(config: Path | None, options: Mapping[str, Any]) -> Callable[[], Settings]:
    file = find_config_file(config)
    if file is not None:
        from gateway.config import load

        return partial(load, file, options=options)
    if any(
        value and (name.startswith("GATEWAY_KAFKA__") or name in SERVERS_VARIABLES)
        for name, value in os.environ.items()
    ):
        from gateway.config import loads

        return partial(loads, "{}", name="the environment", options=options, with_variables=True)
    start = f"`gateway run --servers {DEFAULT_SERVERS} --topic orders` needs none"
    raise typer.BadParameter(f"{MISSING_CONFIG_MESSAGE}, and {start}")


def _serve(
    load_settings: Callable[[], Settings],
    pid_file: Path | None,
    debug: Sequence[str] | None,
    start: QuickStart | None = None,
) -> None:
    from gateway.web.app.server import serve

    from .sidecar import create_sidecar

    with ExitStack() as stack:
        if pid_file is not None:
            replace_file(pid_file, f"{os.getpid()}\n")
            stack.callback(remove_file, pid_file)
        settings = load_settings()
        status = serve(
            settings,
            debug=set(debug or ()),
            load=load_settings,
            co_hosted_app_factory=create_sidecar,
            notes=() if start is None else start.iter_notes(settings),
        )
    if status:
        raise typer.Exit(status)
