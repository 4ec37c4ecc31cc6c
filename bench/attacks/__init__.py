"""What a hostile client costs the others: `python -m bench.attacks`.

An attack (`attack.Attack`) is a blocking function that runs in a process of its own
(`attacker.py`) against a gateway of one worker (`measure.py`). Another process asks for
`/health/live` all the while (`prober.py`), and two honest clients read every byte of theirs.
Start reading at `catalog.py`, which lists the attacks, and `measure.py`.
"""
