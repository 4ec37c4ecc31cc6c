"""Spark jobs from topics to topics, and from there into the browser.

`gateway.cli` calls this package. Start reading in `run.runner`, which runs jobs; `jobs` has one
module for each type of job. `docs/pipeline.md` describes them for users. The modules of this folder
check jobs (`check`), measure how evenly their input is distributed (`skew`), estimate machines
(`plan`), say what settings mean (`job_settings`), reach Kafka (`clusters`), explain why a query
ended (`failures`), and keep what jobs report beside Spark's progress (`reports`).

`library` is for programs: `from gateway.pipeline import read_topic, write_exactly_once`. Its names
are imported when they are first used (PEP 562), as Spark's workers import this package, too.

Nothing imports pyspark before a job is built: `list`, `check`, `plan` and `doctor` need no Java.
"""

from __future__ import annotations

TYPE_CHECKING = False  # as in `gateway`
if TYPE_CHECKING:
    from .library import TopicStream, jars, read_topic, session_conf, write_exactly_once

__all__ = ["TopicStream", "jars", "read_topic", "session_conf", "write_exactly_once"]


if not TYPE_CHECKING:  # a type checker that sees __getattr__ accepts any attribute of the module

    def __getattr__(name: str) -> object:
        if name not in __all__:
            raise AttributeError(f"module 'gateway.pipeline' has no attribute {name!r}")
        try:
            from . import library
        except ModuleNotFoundError:
            from gateway.extras import require_extra

            require_extra("pipeline", f"gateway.pipeline.{name}")
            raise
        value = globals()[name] = getattr(library, name)
        return value
