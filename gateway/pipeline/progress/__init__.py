"""Report the progress of jobs: as metrics, records of a topic, log lines and a file for the doctor.

`gateway pipeline run` enters `listener.report_progress` for as long as jobs run. Start reading in
`listener`, which receives Spark's events. `metrics` counts and serves them, `records` writes them
to a file and to a topic, and `tasks` reads the times of tasks. What Spark's events do not contain
is in `gateway.pipeline.reports`.
"""
