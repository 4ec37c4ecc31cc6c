"""Run jobs: one query of Spark for each, started again after failures that may be temporary.

`gateway pipeline run` calls `runner`, which runs all jobs of a process: start reading there. It has
a `job_run` for each job, from its start to its end, and `query` starts the job's query. `output`
encodes its rows, and refuses keys that a repeated batch may not have again.
"""
