"""Find out why a job is slow: causes with their evidence, from the progress of its query.

`gateway pipeline doctor` loads progress by `query_run.load_records` (saved JSON) or from the file
that a running job writes (`gateway.pipeline.progress.records`), and the console gets it live. They
then call `query_run.build_run` and `diagnosis.diagnose`. Start reading in `diagnosis`, which lists
the detectors. Those of what tasks spend time on are in `costs`, the others in `flow`.
"""
