"""Measure Spark's jobs, on `local[2]` with 2 GiB: the works `spark-*`.

Each measurement is a module with `measure(cell, workload)`, its `Workload`, and `SMALL`, the one of
a smoke run. It starts what it needs (Spark, Kafka, Redis), and ends it. Whatever comes out is
compared with an oracle in plain Python, or with what was given; a figure of a wrong result is none.
"""
