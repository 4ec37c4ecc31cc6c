"""Spark itself: Java, jars, the session, spark-submit, and how it connects to Kafka.

`session` builds the session; `versions` names the versions that go together.
"""
