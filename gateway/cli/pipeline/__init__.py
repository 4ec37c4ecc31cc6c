"""`gateway pipeline`: Spark jobs from topics to topics. One file a command; each imports its room
when it is called, and calls one function there."""

from __future__ import annotations

import typer

from . import backup, check, demo, doctor, listing, plan, rescale, run, skew, state, submit

pipeline = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    epilog="Exit codes: 0 done, 1 failure, 2 wrong usage, 78 wrong configuration, 130 by ^C.",
)


@pipeline.callback()
def _pipeline() -> None:
    """Spark jobs of the section `pipelines`: sessions, joins, tables, aggregates, SQL.

    `run` needs Java 17 and `pip install gateway[pipeline]`; `list`, `check` and `plan` need
    neither.

    \b
    gateway pipeline list -c gateway.yaml
    gateway pipeline check -c gateway.yaml
    gateway pipeline run all -c gateway.yaml
    """


pipeline.command("list")(listing.list_)
pipeline.command()(check.check)
pipeline.command()(run.run)
pipeline.command()(submit.submit)
pipeline.command()(demo.demo)
pipeline.command()(doctor.doctor)
pipeline.command()(state.state)
pipeline.command()(backup.backup)
pipeline.command()(backup.restore)
pipeline.command()(rescale.rescale)
pipeline.command()(skew.skew)
pipeline.command()(plan.plan)
