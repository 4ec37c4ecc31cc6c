"""From partitions to clients: shared reads, channels that encode once, clients as cursors.

Called by `web` and `api`, and knows nothing of HTTP. `reads` brings records in, `fanout` hands them
to clients, `wires` encodes them, `writes` sends clients' records to Kafka. Start with `fanout.hub`.
"""
