"""`gateway pipeline`: Spark jobs from topics to topics, one module per command."""

from __future__ import annotations

from collections.abc import Callable

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
    To see it:              gateway pipeline demo
    With your own Kafka:    gateway pipeline check -c gateway.yaml
                            gateway pipeline run all -c gateway.yaml
    On a cluster:           gateway pipeline submit all -c gateway.yaml --master spark://host:7077
    Is it slow?             gateway pipeline doctor visits -c gateway.yaml
    How large must it be?   gateway pipeline plan --kind sessions --events 1M/s --keys 50M
    """


_COMMANDS: dict[str, tuple[Callable[..., None], str]] = {
    "list": (listing.list_, "The jobs, and how far they are."),
    "check": (check.check, "What is wrong with jobs, before Spark starts."),
    "run": (run.run, "Run a job, or all, until SIGTERM or ^C."),
    "submit": (submit.submit, "Run them on a cluster, by spark-submit."),
    "demo": (demo.demo, "A shop, jobs over it, and their rows live."),
    "doctor": (doctor.doctor, "What makes a job slow or wrong."),
    "state": (state.state, "What a job remembers; is it whole?"),
    "backup": (backup.backup, "Copy what a job needs to go on."),
    "restore": (backup.restore, "Let a job go on from such a copy."),
    "rescale": (rescale.rescale, "Divide state among more or fewer partitions."),
    "skew": (skew.skew, "Is the load of inputs and keys even?"),
    "plan": (plan.plan, "What a job needs: cores, memory, partitions."),
}
for name, (command, short) in _COMMANDS.items():
    pipeline.command(name, short_help=short)(command)
