"""Spark jobs from topics to topics, and from there into the browser.

`gateway.cli` calls this package. Start reading in `run.runner`, which runs jobs; `jobs` has one
module for each type of job. `docs/pipeline.md` describes them for users. The modules of this folder
check jobs (`check`), list them (`listing`), measure how evenly their input is
distributed (`skew`, `loads`), create topics (`topics`), and generate events (`generate`).

Nothing imports pyspark before a job is built: `list`, `check`, `plan` and `doctor` need no Java.
"""
