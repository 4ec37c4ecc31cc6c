"""Spark for tests: one session, started once, on this machine.

All tests that use it go to one worker (`support.worker_groups`). `spark` is for batch and
streams alike; a test's own settings go into `spark.newSession()`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.spark_jvm import LEAN_CONF, LEAN_JVM_OPTIONS, WORKER_CONF

from gateway.config.sections.job import Spark
from gateway.pipeline.spark.session import build_checkpoint_conf, create_session

# What a query with a Python state processor ends with where Spark has started no worker for it
# within 10 s, which no setting changes. `pipeline run` starts such a query again.
NO_PYTHON_WORKER = "Python worker failed to connect back"
SPARK_CONF = {
    "spark.sql.shuffle.partitions": "2",
    "spark.default.parallelism": "2",
    "spark.sql.streaming.stateStore.maintenanceInterval": "600s",
    "spark.sql.streaming.metricsEnabled": "false",
    "spark.driver.bindAddress": "127.0.0.1",
    **LEAN_CONF,
    **WORKER_CONF,
    **build_checkpoint_conf("/"),
}


@pytest.fixture(scope="session")
def session_spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    made = create_session(
        _build_settings(tmp_path_factory.mktemp("spark")), "tests", jvm_options=LEAN_JVM_OPTIONS
    )
    yield made
    for query in made.streams.active:
        query.stop()
    made.stop()


@pytest.fixture
def spark(session_spark: Any) -> Iterator[Any]:
    """local[2], with RocksDB for state and the connector of Kafka; queries that the test left
    running end with it."""
    yield session_spark
    for query in session_spark.streams.active:
        query.stop()


def _build_settings(directory: Path) -> Spark:
    local = {
        "spark.local.dir": str(directory / "local"),
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
    }
    return Spark(master="local[2]", memory="1GiB", conf={**SPARK_CONF, **local})
