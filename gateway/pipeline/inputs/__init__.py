"""Read a topic as a table with typed columns.

The jobs, the side outputs and `gateway pipeline check` call this package. Start reading in
`source`, which reads a topic as a stream or by ranges of offsets, makes columns of its records and
finds invalid ones. `parsing` reads JSON strictly by expressions of Spark, `schemas` decodes and
encodes values with a schema, and `schema_columns` derives columns from a schema. `types` checks the
types of columns without Spark.
"""
