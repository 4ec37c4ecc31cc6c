"""Spark jobs from topics to topics, and from there into the browser.

`gateway.cli` calls this package. Start reading in `run.runner`, which runs jobs; `jobs` has one
module for each type of job. `docs/pipeline.md` describes them for users. The modules of this folder
check jobs (`check`), measure how evenly their input is distributed (`skew`), estimate machines
(`plan`), say what settings mean (`job_settings`), reach Kafka (`clusters`), explain why a query
ended (`failures`), and keep what jobs report beside Spark's progress (`reports`).

Nothing imports pyspark before a job is built: `list`, `check`, `plan` and `doctor` need no Java.
"""
