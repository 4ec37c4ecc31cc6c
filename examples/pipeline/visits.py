"""Number the clicks of each user: python visits.py SERVERS FROM_TOPIC TO_TOPIC CHECKPOINTS."""

import sys

from pyspark.sql import Row, SparkSession
from pyspark.sql.streaming import StatefulProcessor

from gateway.pipeline import read_topic, session_conf, write_exactly_once


class NumberVisits(StatefulProcessor):
    def init(self, handle):
        self.visits = handle.getValueState("visits", "number bigint")

    def handleInputRows(self, key, rows, timers):
        number = self.visits.get()[0] if self.visits.exists() else 0
        for _ in rows:
            number += 1
            yield Row(user=key[0], visit=number)
        self.visits.update((number,))

    def close(self):
        pass


_, servers, clicks_topic, visits_topic, checkpoint = sys.argv
conf = {"spark.sql.shuffle.partitions": "2"}  # of the state, until the checkpoint is another
spark = SparkSession.builder.config(map=session_conf() | conf).getOrCreate()
clicks = read_topic(
    spark, clicks_topic, servers=servers, fields={"user": "string"}, max_records=1000
)
visits = clicks.rows.groupBy("user").transformWithState(
    NumberVisits(), "user string, visit bigint", outputMode="Append", timeMode="None"
)
query = write_exactly_once(
    visits, visits_topic, servers=servers, key=["user"], name="visits",
    checkpoint=checkpoint, trigger="available-now",
)  # fmt: skip
query.awaitTermination()
