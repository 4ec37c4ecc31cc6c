"""Talk to Kafka, and run Kafka brokers for tests and demos.

The gateway sends request messages of its own over aiokafka's connections. `client` has the
connections and the metadata of a cluster; start reading with `client.cluster`. `fetch`, `produce`,
`group` and `admin` are built on it, and `protocol` encodes and decodes the messages. `embedded`
runs a mock Kafka inside the process, `local` a real one on this machine. `hub` and `sidecar` call
this package; it knows nothing of their clients.
"""
