"""`gateway pipeline doctor`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gateway.cli.commands import EXIT_FAILURE
from gateway.errors import PipelineError

from .completion import complete_job
from .options import find_job, load_pipelines

if TYPE_CHECKING:
    from gateway.pipeline.doctor.cause import Thresholds
    from gateway.pipeline.doctor.diagnosis import Diagnosis


def doctor(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="[NAME]", show_default=False, help="Of a job.", autocompletion=complete_job
        ),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option("--config", "-c", metavar="FILE", exists=True, dir_okay=False),
    ] = None,
    source_file: Annotated[
        Path | None,
        typer.Option(
            "--from",
            metavar="FILE",
            exists=True,
            help="Saved progress (JSON, one object or a list, or one a line), or an event log.",
        ),
    ] = None,
    cores: Annotated[
        int | None,
        typer.Option(min=1, help="Of all executors, where the records do not say it."),
    ] = None,
    above: Annotated[
        str, typer.Option(metavar="TIME", help="What is worth a name: so much of a batch.")
    ] = "500ms",
    as_json: Annotated[bool, typer.Option("--json", help="A JSON object for each query.")] = False,
) -> None:
    """Say what makes a job slow or wrong, what costs most first, with the evidence and what to
    change. Exit code 1 if it is anything.

    With NAME it reads what the running job tells of its latest 100 batches; its machine's files
    suffice, also when it has ended. With --from it reads what was saved anywhere; NAME is then the
    query, if there are several.

    \b
    gateway pipeline doctor sessions -c gateway.yaml
    gateway pipeline doctor --from spark-events/eventlog_v2_app-1
    gateway pipeline doctor --from progress.json --cores 16 --json | jq '.causes[0].name'
    """
    if source_file is None and (name is None or config is None):
        raise typer.BadParameter("give NAME and --config, or --from FILE")
    found = (
        _diagnose_file(source_file, name, cores, above)
        if source_file
        else _diagnose_job(name, config, cores, above)
    )
    for at, each in enumerate(found):
        _print_diagnosis(each, as_json=as_json, first=at == 0)
    if any(each.causes for each in found):
        raise typer.Exit(EXIT_FAILURE)


def _print_diagnosis(diagnosis: Diagnosis, *, as_json: bool, first: bool) -> None:
    from gateway.pipeline.doctor.report import render_text
    from gateway.pipeline.doctor.report import to_json as plain

    if as_json:
        typer.echo(json.dumps(plain(diagnosis)))
    else:
        typer.echo(("" if first else "\n") + render_text(diagnosis))


def _diagnose_file(path: Path, name: str | None, cores: int | None, above: str) -> list[Diagnosis]:
    from gateway.pipeline.doctor.diagnosis import diagnose
    from gateway.pipeline.doctor.progress_records import group_by_query, load_records
    from gateway.pipeline.doctor.query_run import build_run

    by_name = group_by_query(load_records(path))
    if name is not None and name not in by_name:
        raise PipelineError(f"{path} has no query '{name}'; it has {', '.join(by_name)}")
    chosen = [by_name[name]] if name is not None else list(by_name.values())
    limits = _parse_limits(above)
    return [diagnose(build_run(records, cores), limits) for records in chosen]


def _diagnose_job(
    name: str | None, config: Path | None, cores: int | None, above: str
) -> list[Diagnosis]:
    from gateway.pipeline.doctor.diagnosis import diagnose
    from gateway.pipeline.doctor.query_run import build_run
    from gateway.pipeline.progress.progress_file import get_progress_path, read_records

    assert name is not None and config is not None
    _, pipelines = load_pipelines(config)
    job = find_job(pipelines, name)
    path = get_progress_path(pipelines.checkpoints, name)
    records = read_records(path)
    if not records:
        what = "run it on this machine, or give --from with an event log or saved progress"
        raise PipelineError(f"job '{name}' has told nothing yet ({path} is missing); {what}")
    limits = _parse_limits(above)._replace(max_late_share=job.alert_late)
    return [diagnose(build_run(records, cores), limits)]


def _parse_limits(above: str) -> Thresholds:
    from gateway.config.types.units import parse_duration
    from gateway.pipeline.doctor.cause import Thresholds

    try:
        return Thresholds(min_seconds=parse_duration(above))
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--above") from None
