"""Requests with one response: produce, request and reply, the latest record of a key.

`exchange` admits a request, and passes it to what responds for the capability of its route, which
`kinds` lists: `latest`, or `write` with `produce` and `reply`. `write_request` is a client's
record before it goes to Kafka, also for WebSockets. `replies` reads the topics of replies, and
`key_locks` lets one worker at a time write a key. Start reading with `exchange`, which
`web/streams/middleware.py` calls.
"""
