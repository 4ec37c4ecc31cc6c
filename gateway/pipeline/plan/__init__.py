"""Estimate how many machines a job needs, from measurements on two cores.

`gateway pipeline plan` prints the table that `sizing` computes. `estimates` has the measured and
assumed figures with their sources. The package uses neither Spark nor Kafka.
"""
