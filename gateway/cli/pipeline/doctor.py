"""`gateway pipeline doctor`: find what makes a job slow or wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gateway.cli.commands import EXIT_FAILURE
from gateway.cli.options import CONFIG_HELP, build_config_option, find_config_file
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
            metavar="[NAME]",
            show_default=False,
            help="The name of a job.",
            autocompletion=complete_job,
        ),
    ] = None,
    config: Annotated[Path | None, build_config_option(CONFIG_HELP)] = None,
    source_file: Annotated[
        Path | None,
        typer.Option(
            "--from",
            metavar="FILE",
            exists=True,
            help="Saved progress (JSON: an object, a list, or one per line).",
        ),
    ] = None,
    cores: Annotated[
        int | None,
        typer.Option(min=1, help="Cores of all executors, if the records do not say it."),
    ] = None,
    above: Annotated[
        str,
        typer.Option(metavar="TIME", help="Report causes that take at least this much of a batch."),
    ] = "500ms",
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object per query.")
    ] = False,
) -> None:
    """Find what makes a job slow or wrong.

    The causes are printed with the evidence and what to change, the most expensive first.

    With NAME the command reads the progress of the job's latest 100 batches, which the job keeps in
    a file on its machine; it works after the job has ended, too. With --from it reads progress that
    was saved anywhere; NAME then chooses a query, if there are several.

    \b
    gateway pipeline doctor sessions -c gateway.yaml
    gateway pipeline doctor --from progress.json --cores 16 --json | jq '.causes[0].name'
    """
    if source_file is None:
        config = find_config_file(config)
        if name is None or config is None:
            raise typer.BadParameter("give NAME and --config, or --from FILE")
    diagnoses = (
        _diagnose_file(source_file, name, cores, above)
        if source_file
        else _diagnose_job(name, config, cores, above)
    )
    for index, diagnosis in enumerate(diagnoses):
        _print_diagnosis(diagnosis, as_json=as_json, first=index == 0)
    if any(diagnosis.causes for diagnosis in diagnoses):
        raise typer.Exit(EXIT_FAILURE)


def _print_diagnosis(diagnosis: Diagnosis, *, as_json: bool, first: bool) -> None:
    from gateway.pipeline.doctor.report import render_text, to_json

    if as_json:
        typer.echo(json.dumps(to_json(diagnosis)))
    else:
        typer.echo(("" if first else "\n") + render_text(diagnosis))


def _diagnose_file(path: Path, name: str | None, cores: int | None, above: str) -> list[Diagnosis]:
    from gateway.pipeline.doctor.diagnosis import diagnose
    from gateway.pipeline.doctor.query_run import build_run, group_by_query, load_records

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
        what = "run it on this machine, or give --from with saved progress"
        raise PipelineError(f"job '{name}' has no progress yet ({path} is missing); {what}")
    limits = _parse_limits(above)._replace(max_late_share=job.alert_late)
    return [diagnose(build_run(records, cores), limits)]


def _parse_limits(above: str) -> Thresholds:
    from gateway.config.types.units import parse_duration
    from gateway.pipeline.doctor.cause import Thresholds

    try:
        return Thresholds(min_seconds=parse_duration(above))
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--above") from None
