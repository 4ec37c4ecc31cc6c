"""Read and prepare the checkpoints of jobs.

The runner and the commands of `gateway pipeline` call this package. Start reading in `checkpoint`,
which reads the query's id and the offsets of each batch. `versions` says where the checkpoints of a
job are, `definition` describes the job that a checkpoint is of, and `job_checkpoint` prepares a
job's checkpoint for its query.
"""
