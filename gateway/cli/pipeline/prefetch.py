"""`gateway pipeline prefetch`: fetch what jobs need, before they start."""

from __future__ import annotations

import typer


def prefetch() -> None:
    """Fetch the jars of the Kafka connector.

    They are kept in ~/.cache/gateway. Without them a start needs a network.

    \b
    gateway pipeline prefetch
    """
    from gateway.extras import require_extra
    from gateway.pipeline.spark import java
    from gateway.pipeline.spark.spark_home import SPARK_VERSION, fetch_connector_jars

    require_extra("pipeline", "gateway pipeline prefetch")
    runtime = java.find_java()
    fetch_connector_jars()
    typer.echo(f"Spark {SPARK_VERSION} is ready, on Java {runtime.major} ({runtime.path})")
