"""Start Spark, and reach what it hides.

`gateway pipeline run` calls `session.create_session`, and `gateway pipeline submit` calls
`session.run_command`. Start reading in `session`. `spark_home` finds Java, and has the jars and the
only copy of the version numbers. `internals` has all uses of private names of pyspark.

`F` and `T` are pyspark's modules of functions and of types, imported when they are first used: jobs
are checked without Spark.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import functions as F
    from pyspark.sql import types as T
else:

    class _LazyModule:
        def __init__(self, name: str) -> None:
            self._name = name

        def __getattr__(self, attribute: str) -> Any:
            return getattr(import_module(self._name), attribute)

    F, T = _LazyModule("pyspark.sql.functions"), _LazyModule("pyspark.sql.types")

__all__ = ["F", "T"]
