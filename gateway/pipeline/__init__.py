"""Spark jobs from topics to topics, and into the browser: see README.md beside this file.

Nothing here imports pyspark before a job is built: `list`, `check`, `plan` and `doctor` need no
Java.
"""
