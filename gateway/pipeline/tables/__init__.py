"""Read the tables that jobs enrich events with.

The jobs `enrich` and `load` call this package. A small table is joined as a whole (`broadcast`). A
large one stays in Redis, and each task looks up the rows that it needs (`lookup`, which uses
`redis`). Start reading in these two modules.

Spark's Python workers import these modules and keep their state between batches. No module imports
pyspark or the client of Redis before it is used.
"""
