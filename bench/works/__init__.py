"""The works that the servers are given, one module each: `run(kafka, peer, size) -> Cell`."""
