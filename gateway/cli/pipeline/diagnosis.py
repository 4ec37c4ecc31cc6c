"""`gateway pipeline doctor`, `skew` and `plan`: find what a job needs."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gateway.cli.commands import EXIT_FAILURE
from gateway.cli.options import (
    CONFIG_HELP,
    ConfigFileOption,
    build_config_option,
    build_file_option,
    build_time_option,
    complete_job,
    find_config_file,
)
from gateway.errors import PipelineError

from .jobs import JobArgument, JsonOption, load_job

if TYPE_CHECKING:
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
        build_file_option(
            "--from", help="Saved progress (JSON: an object, a list, or one per line)."
        ),
    ] = None,
    cores: Annotated[
        int | None,
        typer.Option(min=1, help="Cores of all executors, if the records do not say it."),
    ] = None,
    above: Annotated[
        float, build_time_option("Report causes that take at least this much of a batch.")
    ] = "500ms",  # type: ignore[assignment]
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
    from gateway.pipeline.doctor.diagnosis import render_text, to_json

    if source_file is None:
        config = find_config_file(config)
        if name is None or config is None:
            raise typer.BadParameter("give NAME and --config, or --from FILE")
    diagnoses = (
        _diagnose_file(source_file, name, cores, above)
        if source_file
        else _diagnose_job(name, config, cores, above)
    )
    for index, each in enumerate(diagnoses):
        text = json.dumps(to_json(each)) if as_json else render_text(each)
        typer.echo(text if as_json or index == 0 else f"\n{text}")
    if any(diagnosis.causes for diagnosis in diagnoses):
        raise typer.Exit(EXIT_FAILURE)


def _diagnose_file(
    path: Path, name: str | None, cores: int | None, above: float
) -> list[Diagnosis]:
    from gateway.pipeline.doctor.diagnosis import diagnose
    from gateway.pipeline.doctor.query_run import (
        Thresholds,
        build_run,
        group_by_query,
        load_records,
    )

    by_name = group_by_query(load_records(path))
    if name is not None and name not in by_name:
        raise PipelineError(f"{path} has no query '{name}'; it has {', '.join(by_name)}")
    chosen = [by_name[name]] if name is not None else list(by_name.values())
    limits = Thresholds(min_seconds=above)
    return [diagnose(build_run(records, cores), limits) for records in chosen]


def _diagnose_job(
    name: str | None, config: Path | None, cores: int | None, above: float
) -> list[Diagnosis]:
    from gateway.pipeline.doctor.diagnosis import diagnose
    from gateway.pipeline.doctor.query_run import Thresholds, build_run
    from gateway.pipeline.progress.records import get_progress_path, read_records

    assert name is not None and config is not None
    _, pipelines, job = load_job(config, name)
    path = get_progress_path(pipelines.checkpoints, name)
    records = read_records(path)
    if not records:
        what = "run it on this machine, or give --from with saved progress"
        raise PipelineError(f"job '{name}' has no progress yet ({path} is missing); {what}")
    limits = Thresholds(min_seconds=above, max_late_share=job.alert_late)
    return [diagnose(build_run(records, cores), limits)]


def skew(
    name: JobArgument,
    config: ConfigFileOption,
    last: Annotated[
        int,
        typer.Option(
            "--last",
            min=1,
            max=10**8,
            help="Records that are read per partition, on average; busy partitions have more.",
        ),
    ] = 10_000,
    as_json: JsonOption = False,
) -> None:
    """Measure the skew of a job's partitions and keys.

    The keys are those that the job groups by. The report says what to set if the load is uneven.
    The command reads the newest records, and changes nothing.

    \b
    gateway pipeline skew paid -c gateway.yaml
    gateway pipeline skew paid -c gateway.yaml --json | jq -r '.keys[0].key'
    """
    from gateway.pipeline.skew import measure_skew, render_report
    from gateway.pipeline.spark.session import create_session

    settings, pipelines, job = load_job(config, name)
    spark = create_session(pipelines.spark, f"skew {name}")
    try:
        reports = measure_skew(spark, job, settings.clusters, settings.catalogs, last)
    finally:
        spark.stop()
    for report in reports:
        typer.echo(json.dumps(report.to_json()) if as_json else render_report(report) + "\n")


_SCALE = {"": 1.0, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}


def _parse_number(text: str) -> float:
    """Return the value of a text such as `10M/s`, `1k`, `200GB` or `20%`. Units are decimal."""
    match = re.fullmatch(r"([\d_.]+)\s*([kKMGT]?)B?(?:/s)?(%?)", text.strip())
    if match is None:
        raise typer.BadParameter(f"'{text}' is not a number such as 10M/s, 200GB or 20%")
    return float(match[1]) * _SCALE[match[2].upper()] / (100 if match[3] else 1)


def _parse_positive(text: str) -> float:
    if (value := _parse_number(text)) <= 0:
        raise typer.BadParameter(f"'{text}' must be more than 0")
    return value


def _number(metavar: str, help: str, parser: Callable[[str], float] = _parse_number) -> Any:
    return typer.Option(parser=parser, metavar=metavar, help=help)


def plan(
    kind: Annotated[
        str, typer.Option(help="Kind of job: stateless, aggregate, sessions, join or enrich.")
    ] = "stateless",
    events: Annotated[float, _number("RATE", "Events per second, such as 10M/s.")] = "1000",  # type: ignore[assignment]
    state: Annotated[float, _number("SIZE", "Size of the whole state, such as 200GB.")] = "0",  # type: ignore[assignment]
    keys: Annotated[float, _number("N", "Keys with state, or in use, such as 50M.")] = "0",  # type: ignore[assignment]
    output: Annotated[float | None, _number("RATE", "Output rows per second.")] = None,
    guarantee: Annotated[
        str, typer.Option(help="Guarantee: exactly-once or at-least-once.")
    ] = "exactly-once",
    cores: Annotated[int, typer.Option(min=1, help="Cores per executor.")] = 8,
    executors: Annotated[
        int | None, typer.Option(min=1, help="Number of executors.  [computed]")
    ] = None,
    memory: Annotated[
        float | None, _number("SIZE", "Memory for state per executor.  [computed]")
    ] = None,
    active: Annotated[
        float, _number("SHARE", "Share of the state that is in use.", _parse_positive)
    ] = "20%",  # type: ignore[assignment]
    hot: Annotated[float, _number("SHARE", "Share of events that have the same key.")] = "0%",  # type: ignore[assignment]
    bandwidth: Annotated[
        float, _number("RATE", "Bandwidth per executor to the checkpoint.", _parse_positive)
    ] = "500MB",  # type: ignore[assignment]
    gap: Annotated[float, build_time_option("Gap that ends a session.")] = "0s",  # type: ignore[assignment]
    watermark: Annotated[float, build_time_option("Watermark delay of sessions.")] = "0s",  # type: ignore[assignment]
    max_length: Annotated[float, build_time_option("Longest session.")] = "0s",  # type: ignore[assignment]
    table: Annotated[
        float, _number("SIZE", "Size of the table to enrich from, such as 500GB.")
    ] = "0",  # type: ignore[assignment]
    staleness: Annotated[float, build_time_option("Greatest age of cached values.")] = "5s",  # type: ignore[assignment]
) -> None:
    """Compute what a job needs: cores, memory, partitions.

    It also computes the time of a restart and, with --state, the writes to the checkpoint.
    The figures are extrapolated from measurements on two cores (each line says from which), so
    measure again on the cluster itself.

    \b
    gateway pipeline plan --kind sessions --events 10M/s --state 200GB --keys 1G
    gateway pipeline plan --kind enrich --events 100k/s --table 500GB --staleness 5s
    """
    from gateway.pipeline.plan import KINDS, JobRequirements, build_plan, render_table

    if kind not in KINDS:
        raise typer.BadParameter(f"use one of {', '.join(KINDS)}", param_hint="--kind")
    if guarantee not in ("exactly-once", "at-least-once"):
        raise typer.BadParameter("use exactly-once or at-least-once", param_hint="--guarantee")
    result = build_plan(
        JobRequirements(
            kind=kind, events=events, state=state, keys=keys, output=output,
            exactly_once=guarantee == "exactly-once", cores=cores, executors=executors,
            memory=memory, active=active, hot=hot, bandwidth=bandwidth, gap=gap,
            watermark=watermark, max_length=max_length, table=table, staleness=staleness,
        )
    )  # fmt: skip
    typer.echo(render_table(result))
