"""The fault bench: a random schedule of faults against everything that the gateway promises.

`make faults SEEDS=1-20 SECONDS=60` runs it. Start reading in `schedule` (what happens when), then
`world` (what runs; `startup` starts it), `views` (what each client may expect), `judge` (how it is
compared), `reactive` and `spark_job` (the same of the sidecar's group and of a job), and the faults
themselves: `actions`.
"""
