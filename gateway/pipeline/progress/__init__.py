"""Report the progress of jobs: as metrics, records of a topic, log lines and a file for the doctor.

`gateway pipeline run` enters `listener.report_progress` for as long as jobs run. Start reading in
`listener`, which receives Spark's events and passes them to the other modules. All parts of a job
call `counts` and `alerts` for what Spark's events do not contain.
"""
