"""A client of Kafka, and brokers for tests and demos.

Requests of our own go over aiokafka's connections. `client` has the connections and metadata of a
cluster, `fetch`, `produce` and `group` what is done with them, `protocol` the bytes; `embedded` is
a Kafka in the process, `local` a real one on this machine. Start with `client.cluster`.
"""
