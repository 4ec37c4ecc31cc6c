"""`gateway pipeline`: check, run and inspect the Spark jobs of a configuration.

The commands import `gateway.pipeline` when they run, and most of them Spark only if they need it.
`driver` is the script of spark-submit. Start reading with `jobs.run`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import typer
from typer.core import TyperGroup

from gateway.cli.commands import format_exit_codes
from gateway.errors import PipelineError

from . import checkpoints, diagnosis, jobs


class _SparkGroup(TyperGroup):
    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except Exception as error:
            if "pyspark" in sys.modules:
                from gateway.pipeline.spark.session import describe_jvm_end

                if problem := describe_jvm_end(error):
                    raise PipelineError(problem) from None
            raise


pipeline = typer.Typer(
    cls=_SparkGroup, no_args_is_help=True, rich_markup_mode=None, epilog=format_exit_codes()
)


@pipeline.callback()
def _pipeline() -> None:
    """Run and inspect Spark jobs from topics to topics.

    Jobs are configured in the section `pipelines`: sessions, joins, tables, aggregates, SQL. `run`
    needs Java 17 and the extra `pipeline`, `check` only the extra; `list`, `plan` and `check
    --offline` need neither.

    \b
    To see it work:        gateway pipeline demo
    With your own Kafka:   gateway pipeline check -c gateway.yaml
                           gateway pipeline run all -c gateway.yaml
    On a cluster:          gateway pipeline submit all -c gateway.yaml --master spark://host:7077
    If a job is slow:      gateway pipeline doctor visits -c gateway.yaml
    To plan a cluster:     gateway pipeline plan --kind sessions --events 1M/s --state 20GB
    """


_COMMANDS: dict[str, tuple[Callable[..., None], str]] = {
    "list": (jobs.list_, format_exit_codes()),
    "check": (jobs.check, format_exit_codes()),
    "run": (jobs.run, format_exit_codes("a job failed")),
    "submit": (jobs.submit, format_exit_codes("spark-submit or a job failed")),
    "prefetch": (jobs.prefetch, format_exit_codes(reads_config=False)),
    "demo": (jobs.demo, format_exit_codes(reads_config=False)),
    "doctor": (diagnosis.doctor, format_exit_codes("failure or a cause was found")),
    "state": (checkpoints.state, format_exit_codes("failure or a damaged file")),
    "backup": (checkpoints.backup, format_exit_codes()),
    "restore": (checkpoints.restore, format_exit_codes()),
    "rescale": (checkpoints.rescale, format_exit_codes()),
    "skew": (diagnosis.skew, format_exit_codes()),
    "plan": (diagnosis.plan, format_exit_codes(reads_config=False)),
}
for name, (command, exit_codes) in _COMMANDS.items():
    pipeline.command(name, epilog=exit_codes)(command)
