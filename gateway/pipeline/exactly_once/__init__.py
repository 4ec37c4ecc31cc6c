"""Write the rows of a query to Kafka, each exactly once for readers of committed records.

The jobs call `ExactlyOnceOutput` from Spark's `foreachBatch`. Start reading in `writer_plan`, which
has the rules without I/O. `ledger` stores in Kafka which batches were written, `producers` keeps
transactional producers in the Python workers, `task` is the work of a worker, and `driver` that of
the driver.

`side_outputs` writes the reports of a job beside its rows: `gaps` the offsets that it did not read,
`side_output` the late and the undecodable records. `input_topics` notices that an input topic was
deleted and created again, which ends the job, and transactions that stay open.
"""

from __future__ import annotations

from .driver import ExactlyOnceOutput

__all__ = ["ExactlyOnceOutput"]
