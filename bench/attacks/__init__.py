"""Measure what a hostile client costs the other clients: `python -m bench.attacks`.

An attack (`attack.Attack`) is a blocking function that runs in its own process (`attacker.py`)
against a gateway of one worker (`measure.py`). Another process requests `/health/live` all the
time (`prober.py`), and two honest clients read every byte of their streams. Start reading at
`catalog.py`, which lists the attacks, and `measure.py`.
"""
