"""Run the gateway from the command line.

The console script `gateway` calls `main`. Each command has a module, which parses the options and
calls one function of a layer below. A command imports that layer when it runs, so that `--help` and
completion are quick. The packages hold what one command needs besides; `cluster_check` is that of
`gateway check --cluster`.

Start reading with `commands`, then `run`.
"""

from __future__ import annotations

from typing import Annotated

import typer

from gateway.version import __version__

from . import (
    admin,
    configuration,
    doctor,
    init,
    local,
    migrate,
    pipeline,
    produce,
    run,
    sidecar,
    sidecar_requests,
    tail,
    token,
    topics,
)
from .commands import EXIT_CONFIG_ERROR, ErrorReportingGroup, format_exit_codes

__all__ = ["EXIT_CONFIG_ERROR", "app", "main"]

app = typer.Typer(
    cls=ErrorReportingGroup,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=format_exit_codes(),
)


for command, exit_codes in (
    (run.run, format_exit_codes()),
    (admin.reload, format_exit_codes("not reloaded")),
    (doctor.doctor, format_exit_codes("a cause was found, or no gateway answers")),
    (admin.health, format_exit_codes("it is not alive")),
    (local.demo, format_exit_codes(reads_config=False)),
    (init.init, format_exit_codes("not written", reads_config=False)),
    (migrate.migrate, format_exit_codes("not written")),
    (configuration.check, format_exit_codes("something fails with --cluster")),
    (configuration.config, format_exit_codes()),
    (produce.produce, format_exit_codes("a record was not acknowledged")),
    (tail.tail, format_exit_codes("failure or, with --strict, a gap")),
    (topics.topics, format_exit_codes()),
    (local.broker, format_exit_codes(reads_config=False)),
    (sidecar.sidecar, format_exit_codes()),
):
    app.command(epilog=exit_codes)(command)
app.add_typer(sidecar_requests.dlq, name="dlq")
app.add_typer(pipeline.pipeline, name="pipeline")
app.add_typer(sidecar_requests.replay, name="replay")
app.add_typer(token.token, name="token")


def main() -> None:
    app(prog_name="gateway")


def _print_version(value: bool) -> None:
    if value:
        typer.echo(f"gateway {__version__}")
        raise typer.Exit


@app.callback()
def gateway(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Print the traceback of an error.")
    ] = False,
) -> None:
    """Stream Kafka topics to browsers, as Server-Sent Events that resume without loss.

    \b
    To see it work:       gateway demo
    With your own Kafka:  gateway run --servers localhost:9092 --topic orders
    With a configuration: gateway init
                          gateway check --cluster
                          gateway run
    """
