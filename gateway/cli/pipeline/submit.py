"""`gateway pipeline submit`: run jobs on a Spark cluster."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from .options import ConfigFileOption, JobsArgument, find_jobs, load_pipelines
from .run import FreshOption

MasterOption = Annotated[
    str | None,
    typer.Option(
        metavar="URL", help="The cluster: spark://host:port, k8s://.., yarn.  [pipelines.spark]"
    ),
]
PrintOption = Annotated[
    bool,
    typer.Option("--print", help="Print the command line, and run nothing.", show_default=False),
]


def submit(
    name: JobsArgument,
    config: ConfigFileOption,
    master: MasterOption = None,
    fresh: FreshOption = False,
    print_only: PrintOption = False,
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
    from gateway.pipeline.spark.spark_home import build_archive, fetch_connector_jars
    from gateway.pipeline.spark.submit import build_command, run_command

    settings, pipelines = load_pipelines(config)
    jobs = find_jobs(pipelines, name)
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
