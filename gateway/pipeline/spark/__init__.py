"""Start Spark, and reach what it hides.

`gateway pipeline run` calls `session.create_session`, and `gateway pipeline submit` calls
`session.run_command`. Start reading in `session`. `spark_home` finds Java, and has the jars and the
only copy of the version numbers. `internals` has all uses of private names of pyspark.
"""
