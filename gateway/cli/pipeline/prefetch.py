"""`gateway pipeline prefetch`: fetch and build what jobs need, before they start."""

from __future__ import annotations

from typing import Annotated

import typer


def prefetch(
    class_archive: Annotated[
        bool, typer.Option(help="Build the class archive, with which Spark starts faster.")
    ] = True,
) -> None:
    """Fetch and build what lets jobs start faster.

    These are the jars of the Kafka connector, without which a start needs a network, and an archive
    of the classes that Spark loads. Both are kept in ~/.cache/gateway, and what is there is kept.
    The archive takes 210 MB, and its build about 30 s on two idle cores. Jobs whose spark.master is
    local use it. After an update of Java or Spark they do without it until this command has run
    again.

    \b
    gateway pipeline prefetch
    gateway pipeline prefetch --no-class-archive
    """
    from gateway.extras import require_extra
    from gateway.pipeline.spark import java
    from gateway.pipeline.spark.class_archive import ensure_class_archive
    from gateway.pipeline.spark.jars import fetch_connector_jars
    from gateway.pipeline.spark.versions import SPARK_VERSION

    require_extra("pipeline", "gateway pipeline prefetch")
    runtime = java.find_java()
    jars = fetch_connector_jars()
    typer.echo(f"Spark {SPARK_VERSION} is ready, on Java {runtime.major} ({runtime.path})")
    if class_archive:
        path = ensure_class_archive(jars, runtime)
        typer.echo(f"class archive: {path}, {path.stat().st_size / 1e6:.0f} MB")
