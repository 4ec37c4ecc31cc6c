"""How many machines a job needs, computed from what was measured on few.

`rates` has the figures and their sources, `sizing` the arithmetic, `report` what is told. Knows
neither Spark nor Kafka.
"""
