"""Manage the state of jobs: RocksDB's files in a checkpoint.

The runner and the commands `gateway pipeline state`, `backup`, `restore` and `rescale` call this
package. Start reading in `layout`, which describes the files of a checkpoint. `files` reads and
writes them on local disks and on Hadoop's file systems, `integrity` checks one, and `report` finds
the damaged ones of a checkpoint and shows the state. Above these, `backup` copies and restores a
checkpoint, `rescale` changes the number of partitions, and `repair` and `recovery` mend damaged
state before a query starts. `damage` reports damage while a query runs, `profiles` has Spark's
settings for state, `location` finds the checkpoint of a job, and `lease` ensures that only one
process uses it. Where a function takes `check_content`, it is that of
`integrity.create_content_check`; None checks without a JVM.
"""
