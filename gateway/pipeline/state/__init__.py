"""What jobs remember: RocksDB's files in the checkpoint. Chosen settings (`profiles`), reading it
back (`read`), copies (`backup`), another number of partitions (`rescale`), damage told (`damage`)
and mended (`repair`)."""
