"""Avro as JSON, and back. Start with `codec`."""
