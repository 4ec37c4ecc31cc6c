"""Kafka's protocol: requests and answers as bytes, for aiokafka's connections.

`codec` reads and writes fields, `requests` frames them; each other module has the messages of one
subject. Start with `requests`.
"""
