"""The dialect of Confluent's REST Proxy, version 2, as its clients speak it and its documentation
has it: https://docs.confluent.io/platform/current/kafka-rest/api.html. Thin, over the instances and
the producer of the contract.
"""
