"""Stream and write records from a Python program, without a server.

A `Gateway` has the connections to Kafka, and its `subscribe` returns a `Stream`: an async iterator
of records as objects. They are read by the same shared reads as those of all other clients. The
names that programs use are exported by the package `gateway`.

Start reading with `gateway`, then `stream`. `gateway.web` runs a `Gateway`, too.
"""
