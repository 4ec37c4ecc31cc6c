"""Find out why a job is slow: causes with their evidence, from the progress of its query.

`gateway pipeline doctor` loads progress by `query_run.load_records` (saved JSON) or from the file
that a running job writes (`gateway.pipeline.progress.progress_file`). It then calls
`query_run.build_run`, `diagnosis.diagnose` and `report`. Start reading in `diagnosis`, which lists
the detectors. The detectors are in `state`, `partitions`, `flow` and `runtime`.
"""
