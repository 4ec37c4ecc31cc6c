"""Topics of jobs, as Kafka lets the job's user have them."""

from __future__ import annotations

import pytest
from confluent_kafka.admin import AclOperation
from support.admin import KafkaAdmin
from support.secure_kafka import PASSWORDS_BY_USER, grant_access

from gateway.errors import PipelineError
from gateway.pipeline.clusters import create_topic


def test_a_user_who_may_not_create_topics_can_use_one_that_exists(session_secured, authority):
    """Kafka refuses such a user before it looks for the topic: the first dead letter of a job ended
    it with every start, although its topic was there."""
    admin, topic = KafkaAdmin(session_secured.bootstrap), "dead-letters-of-a-job"
    options = {
        "bootstrap.servers": ",".join(session_secured.get_addresses("SASL_TLS")),
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": str(authority.certificate_path),
        "sasl.mechanism": "PLAIN",
        "sasl.username": "carol",
        "sasl.password": PASSWORDS_BY_USER["carol"],
    }
    grant_access(admin, "User:carol", topic, AclOperation.WRITE)
    with pytest.raises(PipelineError, match=f"topic {topic} cannot be created"):
        create_topic(options, topic)
    admin.create_topic(topic)
    create_topic(options, topic)
