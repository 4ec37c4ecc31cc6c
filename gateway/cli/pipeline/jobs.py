"""`gateway pipeline list`, `check`, `run`, `submit`, `prefetch` and `demo`, and their options."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gateway.cli.commands import EXIT_CONFIG_ERROR
from gateway.cli.local import PrintDemoOption, require_free_port
from gateway.cli.options import ConfigFileOption, complete_job, complete_job_or_all
from gateway.cli.output import format_table
from gateway.errors import PipelineError

if TYPE_CHECKING:
    from gateway.config import Pipelines, Settings
    from gateway.config.sections.job import Job


JobArgument = Annotated[
    str,
    typer.Argument(
        metavar="NAME", show_default=False, help="The name of a job.", autocompletion=complete_job
    ),
]
JobsArgument = Annotated[
    str,
    typer.Argument(
        metavar="NAME|all",
        show_default=False,
        help="The name of a job, or all.",
        autocompletion=complete_job_or_all,
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object per line.")]


def load_pipelines(file: Path) -> tuple[Settings, Pipelines]:
    from gateway.config import load

    settings = load(file)
    if settings.pipelines is None or not settings.pipelines.jobs:
        raise PipelineError(f"{file} has no jobs; add them as pipelines.jobs")
    return settings, settings.pipelines


def find_job(pipelines: Pipelines, name: str) -> Job:
    from gateway.config.types.substitution import suggest

    job = pipelines.find_job(name)
    if job is None:
        hint = suggest(name, [each.name for each in pipelines.jobs], "see `gateway pipeline list`")
        raise PipelineError(f"there is no job '{name}'; {hint}")
    return job


def load_job(file: Path, name: str) -> tuple[Settings, Pipelines, Job]:
    settings, pipelines = load_pipelines(file)
    return settings, pipelines, find_job(pipelines, name)


def load_jobs(file: Path, name: str) -> tuple[Settings, Pipelines, list[Job]]:
    settings, pipelines = load_pipelines(file)
    jobs: list[Job] = list(pipelines.jobs) if name == "all" else [find_job(pipelines, name)]
    return settings, pipelines, jobs


def list_(config: ConfigFileOption, as_json: JsonOption = False) -> None:
    """List the jobs and their progress.

    Each has its kind, topics, interval and guarantee, and how far it is.

    \b
    gateway pipeline list -c gateway.yaml
    gateway pipeline list -c gateway.yaml --json | jq -r .name
    """
    _, pipelines = load_pipelines(config)
    jobs = [_describe_job(pipelines, job) for job in pipelines.jobs]
    heads = [name.rstrip("_").upper() for name in jobs[0]]
    table = format_table([heads, *(list(row.values()) for row in jobs)])
    typer.echo("\n".join(map(json.dumps, jobs) if as_json else table))


def _describe_job(pipelines: Pipelines, job: Job) -> dict[str, str]:
    from gateway.config.sections.pipelines import Load
    from gateway.config.types.units import format_duration
    from gateway.pipeline.job_settings import get_inputs, get_job_type, get_output

    if isinstance(job, Load):
        to, guarantee = f"{job.into.url} {job.into.prefix}*", "at-least-once"
    else:
        output = get_output(job)
        to, guarantee = ("", "") if output is None else (output.topic, output.guarantee)
    return {
        "name": job.name,
        "kind": get_job_type(job),
        "from_": ", ".join(dict.fromkeys(each.topic for each in get_inputs(job).values())),
        "to": to,
        "trigger": job.trigger if isinstance(job.trigger, str) else format_duration(job.trigger),
        "guarantee": guarantee,
        "state": _describe_progress(pipelines.checkpoints, job.name),
    }


def _describe_progress(root: str, job: str) -> str:
    """Return the version of a job's checkpoint and its last batch, unless Spark must read it."""
    from gateway.pipeline.checkpoint.checkpoint import Checkpoint
    from gateway.pipeline.checkpoint.job_checkpoint import list_versions, version_path
    from gateway.pipeline.job_settings import local_path

    if local_path(root) is None:
        return f"in {root}"
    versions = list_versions(root, job)
    if not versions:
        return "new"
    batch = Checkpoint(version_path(root, job, versions[-1])).read_last_committed()
    return f"v{versions[-1]}, {'no batch yet' if batch is None else f'batch {batch}'}"


def check(
    config: ConfigFileOption,
    name: Annotated[
        str,
        typer.Argument(
            metavar="[NAME|all]",
            help="The name of a job, or all.",
            autocompletion=complete_job_or_all,
        ),
    ] = "all",
    offline: Annotated[
        bool,
        typer.Option(
            "--offline", help="Do not connect to Kafka and registries.", show_default=False
        ),
    ] = False,
) -> None:
    """Print what is wrong with jobs, without Spark.

    It checks columns and types, whether Spark allows the job's plan, whether its topics exist and
    whether schemas match. Spark reads SQL (`sql`, `measures`, `select`) only when the job starts.
    It needs no Java. Each problem is one line,
    FILE:LINE:COLUMN: what is wrong; what to do. If Kafka or a registry does not answer, that is
    printed, but it is no problem of the file.

    \b
    gateway pipeline check -c gateway.yaml
    gateway pipeline check visits -c gateway.yaml --offline
    """
    from gateway.pipeline import check as checks

    settings, _, jobs = load_jobs(config, name)
    checks.raise_for_problems(config, settings, jobs)
    external = checks.ExternalCheck([], []) if offline else checks.check_externals(settings, jobs)
    for reason in external.skipped_checks:
        typer.echo(f"{config}: not checked: {reason}", err=True)
    for line in checks.format_problems(config, external.problems):
        typer.echo(line, err=True)
    if external.problems:
        raise typer.Exit(EXIT_CONFIG_ERROR)
    typer.echo(f"{config}: {len(jobs)} job{'s' * (len(jobs) != 1)}: ok")


FreshOption = Annotated[
    bool,
    typer.Option(
        "--fresh", help="Begin a new checkpoint, at the job's `start`; the old one stays."
    ),
]


def run(name: JobsArgument, config: ConfigFileOption, fresh: FreshOption = False) -> None:
    """Run a job, or all jobs, until SIGTERM or ^C.

    All jobs run in one Spark session. They end after the present batch. The checkpoint holds what
    was read and written, and the next start continues from there. While Kafka cannot be reached,
    jobs wait. A job that fails for another reason ends, and the others go on.

    \b
    gateway pipeline run sessions -c gateway.yaml
    gateway pipeline run all -c gateway.yaml
    """
    from gateway.pipeline import check
    from gateway.pipeline.run.runner import run_jobs
    from gateway.telemetry import logs

    settings, pipelines, jobs = load_jobs(config, name)
    configured = settings.telemetry.logs
    levels = {str(package): str(level) for package, level in configured.levels.items()}
    logs.configure(configured.format, configured.level, levels)
    check.raise_for_problems(config, settings, jobs)
    if status := run_jobs(settings, pipelines, jobs, fresh=fresh):
        raise typer.Exit(status)


def submit(
    name: JobsArgument,
    config: ConfigFileOption,
    master: Annotated[
        str | None,
        typer.Option(
            metavar="URL", help="The cluster: spark://host:port, k8s://.., yarn.  [pipelines.spark]"
        ),
    ] = None,
    fresh: FreshOption = False,
    print_only: Annotated[
        bool,
        typer.Option(
            "--print", help="Print the command line, and run nothing.", show_default=False
        ),
    ] = False,
) -> None:
    """Run jobs on a Spark cluster, by spark-submit.

    It passes the jars of the Kafka connector, this package and the settings of the configuration,
    and prints the command line first. The driver runs on this machine and reads the configuration
    here. The nodes need a Python with the dependencies of kafka-gateway[pipeline] (named by
    PYSPARK_PYTHON), and access to the checkpoints. SIGTERM and ^C end the jobs after the present
    batch, as with `run`.

    \b
    gateway pipeline submit all -c gateway.yaml --master spark://host:7077
    gateway pipeline submit all -c gateway.yaml --print
    """
    from gateway.pipeline import check
    from gateway.pipeline.spark.session import build_command, run_command
    from gateway.pipeline.spark.spark_home import build_archive, fetch_connector_jars

    settings, pipelines, jobs = load_jobs(config, name)
    check.raise_for_problems(config, settings, jobs)
    spark = pipelines.spark
    if master is not None:
        spark = spark.model_copy(update={"master": master})
    arguments = [name, "-c", str(config.resolve()), *(["--fresh"] if fresh else [])]
    driver = Path(__file__).with_name("driver.py")
    line = build_command(
        spark, arguments, driver=driver, jars=fetch_connector_jars(), package=build_archive()
    )
    typer.echo(shlex.join(line))
    if not print_only and (status := run_command(line, master=spark.master)):
        raise typer.Exit(status)


def prefetch() -> None:
    """Fetch the jars of the Kafka connector.

    They are kept in ~/.cache/gateway. Without them a start needs a network.

    \b
    gateway pipeline prefetch
    """
    from gateway.extras import require_extra
    from gateway.pipeline.spark import spark_home
    from gateway.pipeline.spark.spark_home import SPARK_VERSION, fetch_connector_jars

    require_extra("pipeline", "gateway pipeline prefetch")
    runtime = spark_home.find_java()
    fetch_connector_jars()
    typer.echo(f"Spark {SPARK_VERSION} is ready, on Java {runtime.major} ({runtime.path})")


RateOption = Annotated[float, typer.Option(min=0, max=10_000, help="Events per second.")]


def demo(
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port to listen on; 0 for any free one.")
    ] = 8080,
    browser: Annotated[bool, typer.Option(help="Open the page in a browser.")] = True,
    clicks: RateOption = 40.0,
    orders: RateOption = 8.0,
    users: Annotated[
        int, typer.Option(min=1, max=1_000_000, help="How many users there are.")
    ] = 500,
    skew: Annotated[
        float,
        typer.Option(
            min=0, max=5, help="How unequal users are: the exponent of Zipf's law; 0 for equal."
        ),
    ] = 1.1,
    disorder: Annotated[
        float,
        typer.Option(min=0, max=60, help="Mean delay in seconds from an event to its sending."),
    ] = 0.2,
    late: Annotated[
        float, typer.Option(min=0, max=1, help="Share of events that are sent two minutes late.")
    ] = 0.01,
    paid: Annotated[
        float, typer.Option(min=0, max=1, help="Share of orders that are paid.")
    ] = 0.85,
    seed: Annotated[
        int, typer.Option(help="Seed of the generator: the same seed gives the same traffic.")
    ] = 1,
    print_config: PrintDemoOption = False,
) -> None:
    """Run a shop, jobs over its events, and a page with their rows.

    Everything runs on this machine, with a Kafka of its own. It needs Java 17 or newer.

    \b
    gateway pipeline demo
    gateway pipeline demo --port 9000 --clicks 500 --late 0.2
    gateway pipeline demo --print-config > pipeline.yaml
    """
    from gateway.web.pipeline_demo import CONFIG, run_shop_demo
    from gateway.web.pipeline_demo.generate import ShopTraffic

    if print_config:
        typer.echo(CONFIG, nl=False)
        return
    require_free_port(host, port)
    traffic = ShopTraffic(
        clicks=clicks, orders=orders, users=users, skew=skew, disorder=disorder, late=late,
        paid=paid, seed=seed,
    )  # fmt: skip
    if status := run_shop_demo(host=host, port=port, browser=browser, traffic=traffic):
        raise typer.Exit(status)
