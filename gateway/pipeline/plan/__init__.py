"""Estimate how many machines a job needs, from measurements on two cores.

`gateway pipeline plan` calls `sizing.build_plan` and prints the result by `report`. Start reading
in `sizing`, which has the arithmetic. `estimates` has the measured and assumed figures with their
sources. The package uses neither Spark nor Kafka.
"""
