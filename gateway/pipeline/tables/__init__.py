"""Tables that events are enriched from: small ones held by every task (`broadcast`), large ones
looked up as they are needed (`lookup`, over `cache` and `redis`).

Workers of Spark import what is here, and keep it between batches; nothing imports pyspark or
Redis's client before it is used.
"""
