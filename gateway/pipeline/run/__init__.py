"""Run jobs: one query of Spark for each, started again after failures that may be temporary.

`gateway pipeline run` calls `runner`, which runs all jobs of a process: start reading there. It has
a `job_run` for each job, from its start to its end, and `query` starts the job's query. `output`
encodes its rows, `dead_letter_format` names the topics of rows that are refused, and `failures`
decides which errors may be temporary.
"""
