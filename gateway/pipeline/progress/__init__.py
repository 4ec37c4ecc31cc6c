"""The progress of jobs: as metrics, as records of a topic, for the doctor.

`listener` is told by Spark, and passes it on. Start with `listener`.
"""
