"""Run several processes on one port, and let them talk to each other.

`supervisor` starts each `worker` and restarts those that crash. The processes talk over the `bus`,
whose supervisor side is the `relay`. `app.server.serve` calls it if `listen.workers` is above 1;
with one worker the same `Bus` works without a socket. Ports are bound in `sockets`, or were bound
before by systemd. Start with `supervisor`.
"""
