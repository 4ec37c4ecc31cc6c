"""Look after the checkpoints of jobs: Spark's offsets and state, and what is beside them.

The runner and the commands `gateway pipeline state`, `backup`, `restore` and `rescale` call this
package. Start reading in `checkpoint`, which interprets what Spark writes. `files` reads and writes
it on local disks and on Hadoop's file systems. `job_checkpoint` finds or begins a job's checkpoint
and refuses that of another definition. `damage` says which files are damaged, and reports damage
while a query runs; `report` inspects and shows the state; `repair` mends it before a query starts.
`maintenance` ensures that only one process uses a checkpoint, copies, restores and rescales it.

Where a function takes `check_content`, it is that of `damage.create_content_check`; None checks
without a JVM.
"""
