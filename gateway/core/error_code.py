"""Name the error codes of the Kafka protocol."""

from __future__ import annotations

from enum import IntEnum

from gateway.errors import (
    AccessDenied,
    AuthenticationFailed,
    BrokerUnavailable,
    GroupFailed,
    KafkaError,
    PartitionFailed,
    UnknownTopic,
)


class ErrorCode(IntEnum):
    """The error codes that the gateway tells from one another.

    Names and numbers are those of https://kafka.apache.org/protocol#protocol_error_codes. Brokers
    send other codes, too, and newer ones send codes that do not exist yet. A received code
    therefore stays an `int`: compare it with members, and never convert it into one.
    """

    # Of any request
    UNKNOWN_SERVER_ERROR = -1
    NONE = 0
    REQUEST_TIMED_OUT = 7
    BROKER_NOT_AVAILABLE = 8
    NETWORK_EXCEPTION = 13
    UNSUPPORTED_VERSION = 35
    NOT_CONTROLLER = 41
    INVALID_REQUEST = 42
    THROTTLING_QUOTA_EXCEEDED = 89

    # Authentication and authorization
    TOPIC_AUTHORIZATION_FAILED = 29
    GROUP_AUTHORIZATION_FAILED = 30
    CLUSTER_AUTHORIZATION_FAILED = 31
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53
    SASL_AUTHENTICATION_FAILED = 58

    # Topics
    UNKNOWN_TOPIC_OR_PARTITION = 3
    INVALID_TOPIC_EXCEPTION = 17
    TOPIC_ALREADY_EXISTS = 36
    UNKNOWN_TOPIC_ID = 100
    INCONSISTENT_TOPIC_ID = 103

    # Leaders and replicas of a partition
    LEADER_NOT_AVAILABLE = 5
    NOT_LEADER_OR_FOLLOWER = 6
    REPLICA_NOT_AVAILABLE = 9
    KAFKA_STORAGE_ERROR = 56
    LISTENER_NOT_FOUND = 72
    FENCED_LEADER_EPOCH = 74
    UNKNOWN_LEADER_EPOCH = 75

    # Fetching
    OFFSET_OUT_OF_RANGE = 1
    CORRUPT_MESSAGE = 2
    FETCH_SESSION_ID_NOT_FOUND = 70
    INVALID_FETCH_SESSION_EPOCH = 71
    UNSUPPORTED_COMPRESSION_TYPE = 76
    OFFSET_NOT_AVAILABLE = 78
    FETCH_SESSION_TOPIC_ID_ERROR = 106

    # Producing
    MESSAGE_TOO_LARGE = 10
    RECORD_LIST_TOO_LARGE = 18
    NOT_ENOUGH_REPLICAS = 19
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = 20
    INVALID_TIMESTAMP = 32
    INVALID_RECORD = 87

    # Idempotent producers and transactions
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45
    DUPLICATE_SEQUENCE_NUMBER = 46
    INVALID_PRODUCER_EPOCH = 47
    INVALID_TXN_STATE = 48
    INVALID_PRODUCER_ID_MAPPING = 49
    CONCURRENT_TRANSACTIONS = 51
    OPERATION_NOT_ATTEMPTED = 55
    UNKNOWN_PRODUCER_ID = 59
    PRODUCER_FENCED = 90

    # Coordinators
    COORDINATOR_LOAD_IN_PROGRESS = 14
    COORDINATOR_NOT_AVAILABLE = 15
    NOT_COORDINATOR = 16

    # Groups, their members and offsets
    ILLEGAL_GENERATION = 22
    INCONSISTENT_GROUP_PROTOCOL = 23
    INVALID_GROUP_ID = 24
    UNKNOWN_MEMBER_ID = 25
    INVALID_SESSION_TIMEOUT = 26
    REBALANCE_IN_PROGRESS = 27
    NON_EMPTY_GROUP = 68
    GROUP_ID_NOT_FOUND = 69
    MEMBER_ID_REQUIRED = 79
    GROUP_MAX_SIZE_REACHED = 81
    FENCED_INSTANCE_ID = 82
    GROUP_SUBSCRIBED_TO_TOPIC = 86
    UNSTABLE_OFFSET_COMMIT = 88
    FENCED_MEMBER_EPOCH = 110
    UNRELEASED_INSTANCE_ID = 111
    UNSUPPORTED_ASSIGNOR = 112
    STALE_MEMBER_EPOCH = 113


# The broker is not the coordinator (any more): look it up again.
COORDINATOR_MOVED_ERRORS = frozenset(
    {ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR}
)
# The coordinator moves, or is loading its state.
COORDINATOR_ERRORS = COORDINATOR_MOVED_ERRORS | {ErrorCode.COORDINATOR_LOAD_IN_PROGRESS}
# What a broker answers to a request for the metadata of a topic that does not exist (any more).
UNKNOWN_TOPIC_ERRORS = frozenset(
    {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.INVALID_TOPIC_EXCEPTION}
)
# A record or a batch is larger than the topic's max.message.bytes.
TOO_LARGE_ERRORS = frozenset({ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE})
# The gateway lacks a permission.
AUTHORIZATION_ERRORS = frozenset(
    {
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.GROUP_AUTHORIZATION_FAILED,
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    }
)


def code_from_error(error: KafkaError) -> int:
    """Return the code of a broker's answer, or that of Kafka's own clients for no answer."""
    match error:
        case PartitionFailed() | GroupFailed():
            return error.code
        case BrokerUnavailable(timeout=True):
            return ErrorCode.REQUEST_TIMED_OUT
        case BrokerUnavailable():
            return ErrorCode.NETWORK_EXCEPTION
        case AuthenticationFailed():
            return ErrorCode.SASL_AUTHENTICATION_FAILED
        case AccessDenied():
            return ErrorCode.TOPIC_AUTHORIZATION_FAILED
        case UnknownTopic():
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        case _:
            return ErrorCode.UNKNOWN_SERVER_ERROR
