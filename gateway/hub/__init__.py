"""Bring records from Kafka to clients, and clients' records to Kafka.

One `Hub` serves all streams of one cluster. `reads` fetches each partition once for all clients,
`fanout` writes what arrives to them, `wires` encodes it, and `writes` sends clients' records to
Kafka. The package knows nothing of HTTP requests. Start reading with `fanout.hub`.
"""
