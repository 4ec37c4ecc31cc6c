"""HTTP: routes to streams, health, errors as problems. Knows nothing of Kafka's errors."""
