"""Start Spark: Java, the jars of its Kafka connector, the session, and spark-submit.

`gateway pipeline run` calls `session.create_session`, and `gateway pipeline submit` calls
`submit.run_command`. Start reading in `session`. `client_config` translates the settings of a Kafka
cluster for the clients of Spark and Python. `spark_home` has the jars, and the only copy of
the version numbers.
"""
