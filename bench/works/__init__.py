"""Define the works that servers are given, one module each: `run(kafka, peer, size) -> Cell`."""
