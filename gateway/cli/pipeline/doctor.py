"""`gateway pipeline doctor`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gateway.cli.commands import FAILURE
from gateway.errors import PipelineError

from .completion import names
from .options import job_of, settings_of

if TYPE_CHECKING:
    from gateway.pipeline.doctor.cause import Limits
    from gateway.pipeline.doctor.ranking import Diagnosis


def doctor(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="[NAME]", show_default=False, help="Of a job.", autocompletion=names
        ),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option("--config", "-c", metavar="FILE", exists=True, dir_okay=False),
    ] = None,
    saved: Annotated[
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
    if saved is None and (name is None or config is None):
        raise typer.BadParameter("give NAME and --config, or --from FILE")
    found = _saved(saved, name, cores, above) if saved else _job(name, config, cores, above)
    for at, each in enumerate(found):
        _print(each, as_json=as_json, first=at == 0)
    if any(each.causes for each in found):
        raise typer.Exit(FAILURE)


def _print(found: Diagnosis, *, as_json: bool, first: bool) -> None:
    from gateway.pipeline.doctor.report import as_json as plain
    from gateway.pipeline.doctor.report import as_text

    if as_json:
        typer.echo(json.dumps(plain(found)))
    else:
        typer.echo(("" if first else "\n") + as_text(found))


def _saved(path: Path, name: str | None, cores: int | None, above: str) -> list[Diagnosis]:
    from gateway.pipeline.doctor.opened import opened, queries
    from gateway.pipeline.doctor.ranking import diagnose
    from gateway.pipeline.doctor.reading import run

    by_name = queries(opened(path))
    if name is not None and name not in by_name:
        raise PipelineError(f"{path} has no query '{name}'; it has {', '.join(by_name)}")
    chosen = [by_name[name]] if name is not None else list(by_name.values())
    limits = _limits(above)
    return [diagnose(run(records, cores), limits) for records in chosen]


def _job(name: str | None, config: Path | None, cores: int | None, above: str) -> list[Diagnosis]:
    from gateway.pipeline.doctor.ranking import diagnose
    from gateway.pipeline.doctor.reading import run
    from gateway.pipeline.progress.progress import place, read

    assert name is not None and config is not None
    _, pipelines = settings_of(config)
    job = job_of(pipelines, name)
    path = place(pipelines.checkpoints, name)
    records = read(path)
    if not records:
        what = "run it on this machine, or give --from with an event log or saved progress"
        raise PipelineError(f"job '{name}' has told nothing yet ({path} is missing); {what}")
    limits = _limits(above)._replace(late=job.alert_late)
    return [diagnose(run(records, cores), limits)]


def _limits(above: str) -> Limits:
    from gateway.config.types.units import duration
    from gateway.pipeline.doctor.cause import Limits

    try:
        return Limits(seconds=duration(above))
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--above") from None
