"""Requests with one answer: produce, request and reply, the latest record of a key.

`exchange` finds which it is; a `write_request` is a client's record before it goes to Kafka.
"""
