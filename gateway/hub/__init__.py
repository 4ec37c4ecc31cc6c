"""From partitions to clients: shared reads, channels that encode once, clients as cursors.

Knows nothing of HTTP: a client is an async iterator of bytes.
"""
