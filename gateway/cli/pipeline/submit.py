"""`gateway pipeline submit`."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from .options import File, Jobs, jobs_of, settings_of
from .run import Fresh

Master = Annotated[
    str | None,
    typer.Option(metavar="URL", help="spark://host:port, k8s://.., yarn.  [pipelines.spark]"),
]
Print = Annotated[bool, typer.Option("--print", help="Only print the line.", show_default=False)]


def submit(
    name: Jobs, config: File, master: Master = None, fresh: Fresh = False, only: Print = False
) -> None:
    """Run jobs on a Spark cluster, by spark-submit: with the jars of the Kafka connector, this
    package and the settings of the configuration; prints the line first.

    The driver runs here, and reads the configuration here. Nodes need a Python with what
    gateway[pipeline] depends on (PYSPARK_PYTHON names it), and checkpoints must be where all of
    them reach. SIGTERM and ^C end it after the batch that is under way, as they do `run`.

    \b
    gateway pipeline submit all -c gateway.yaml --master spark://host:7077
    gateway pipeline submit all -c gateway.yaml --print
    """
    from gateway.pipeline import check
    from gateway.pipeline.spark.jars import connector
    from gateway.pipeline.spark.package import archive
    from gateway.pipeline.spark.submit import command, run

    settings, pipelines = settings_of(config)
    jobs = jobs_of(pipelines, name)
    check.refuse(config, settings, jobs)
    spark = pipelines.spark
    if master is not None:
        spark = spark.model_copy(update={"master": master})
    arguments = [name, "-c", str(config.resolve()), *(["--fresh"] if fresh else [])]
    driver = Path(__file__).with_name("driver.py")
    line = command(spark, arguments, driver=driver, jars=connector(), package=archive())
    typer.echo(shlex.join(line))
    if not only and (status := run(line, master=spark.master)):
        raise typer.Exit(status)
