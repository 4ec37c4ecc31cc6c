"""The command line.

Each command has a module that parses its options, imports what it needs when it is called, and
calls one function there. Start with `commands`.
"""

from __future__ import annotations

from typing import Annotated

import typer

from gateway.version import __version__

from . import broker, check, demo, dlq, pipeline, produce, reload, replay, run, sidecar, tail
from .commands import EXIT_CONFIG_ERROR, EXIT_FAILURE, EXIT_INTERRUPTED, ErrorReportingGroup

__all__ = ["EXIT_CONFIG_ERROR", "EXIT_FAILURE", "EXIT_INTERRUPTED", "app", "main"]

app = typer.Typer(
    cls=ErrorReportingGroup,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit codes: 0 done, 1 failure, 2 wrong usage, 78 wrong configuration, 130 by ^C.",
)


for command in (
    run.run,
    reload.reload,
    demo.demo,
    check.check,
    produce.produce,
    tail.tail,
    broker.broker,
    sidecar.sidecar,
):
    app.command()(command)
app.add_typer(dlq.dlq, name="dlq")
app.add_typer(pipeline.pipeline, name="pipeline")
app.add_typer(replay.replay, name="replay")


def main() -> None:
    app(prog_name="gateway")


def _print_version(value: bool) -> None:
    if value:
        typer.echo(f"gateway {__version__}")
        raise typer.Exit


@app.callback()
def gateway(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print it.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show where an error comes from.")] = False,
) -> None:
    """Kafka to the browser: topics as Server-Sent Events that resume without loss.

    \b
    To see it:             gateway demo
    With your own Kafka:   gateway check gateway.yaml
                           gateway run -c gateway.yaml
    """
