from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from support.certificates import CertificateAuthority
from support.redis import RedisServer, ServerEnded, running_redis

from gateway.config.sections.pipelines import Redis as Settings
from gateway.config.types.fields import Secret
from gateway.errors import PipelineError
from gateway.pipeline.tables.redis import RedisConfig, RedisTable, RedisUnavailable

pytestmark = pytest.mark.needs("redis", "java17")  # the set-up of `gateway[pipeline]`


def found(redis: RedisTable, *keys: str) -> dict[str, bytes | None]:
    return {
        key: value
        for chunk, values, _ in redis.fetch_values(keys)
        for key, value in zip(chunk, values, strict=True)
    }


def test_rows_are_written_read_and_deleted_in_chunks(redis_server: RedisServer):
    redis = RedisTable(RedisConfig(redis_server.url, "t:", keys_per_command=2))
    assert redis.store_rows([("a", b"1"), ("b", b"2"), ("c", b"3"), ("d", b"4"), ("e", b"5")]) == 5
    redis.store_rows([("b", None), ("x", None), ("a", b"6")])
    assert found(redis, *"abcde") == {"a": b"6", "b": None, "c": b"3", "d": b"4", "e": b"5"}


def test_of_a_key_given_twice_the_last_is_written(redis_server: RedisServer):
    redis = RedisTable(RedisConfig(redis_server.url, "t:", keys_per_command=10))
    redis.store_rows([("a", b"1"), ("b", b"1"), ("a", None), ("b", b"2")])
    assert found(redis, "a", "b") == {"a": None, "b": b"2"}


def test_how_far_a_table_is_loaded_stands_beside_it(redis_server: RedisServer):
    redis = RedisTable(RedisConfig(redis_server.url, "t:", keys_per_command=10))
    assert redis.fetch_positions() == {}
    redis.store_positions({"users:0": 10, "users:1": 7}, at_ms=1234)
    redis.store_positions({"users:1": 8}, at_ms=1235)
    assert redis.fetch_positions() == {"users:0": 10, "users:1": 8, "at": 1235}


def test_what_is_no_text_is_no_row(redis_server: RedisServer):
    with redis_server.create_client() as client:
        client.hset("t:a", "x", 1)
    assert found(RedisTable(RedisConfig(redis_server.url, "t:", keys_per_command=10)), "a") == {
        "a": None
    }


def test_a_server_that_is_gone_is_away(redis_server: RedisServer):
    redis = RedisTable(RedisConfig(redis_server.url, "t:", keys_per_command=10))
    redis_server.stop()
    with pytest.raises(RedisUnavailable):
        found(redis, "a")


@pytest.mark.parametrize(
    "options",
    [
        ("--min-replicas-to-write", "1"),
        ("--cluster-enabled", "yes"),
        ("--maxmemory", "1", "--maxmemory-policy", "noeviction"),
    ],
    ids=lambda o: o[0],
)
def test_a_server_that_takes_no_writes_now_is_away(options: tuple[str, ...]):
    """The job ended, though a replica that comes back, or a cluster's failover, is all it takes."""
    with running_redis(*options) as server:
        redis = RedisTable(RedisConfig(server.url, "t:", keys_per_command=10))
        with pytest.raises(RedisUnavailable, match=r"NOREPLICAS|slot not served|maxmemory"):
            redis.store_rows([("a", b"1")])


def test_an_address_that_moves_at_a_failover_is_followed(redis_server: RedisServer):
    """The connection to the demoted server was used until the process ended."""
    redis = RedisTable(RedisConfig(redis_server.url, "t:", keys_per_command=10))
    redis.store_rows([("a", b"1")])
    with running_redis() as promoted, redis_server.create_client() as client:
        client.replicaof("127.0.0.1", 1)
        socket_path = Path(redis_server.url.removeprefix("unix://"))
        Path(promoted.url.removeprefix("unix://")).replace(socket_path)
        with pytest.raises(RedisUnavailable, match="read only replica"):
            redis.store_rows([("a", b"2")])
        redis.store_rows([("a", b"2")])
        assert found(redis, "a") == {"a": b"2"}


def test_a_wrong_password_is_told_at_once():
    with running_redis("--requirepass", "right") as server:
        settings = {"kind": "redis", "url": server.url, "fields": {"name": "string"}}
        right = Settings.model_validate({**settings, "password": Secret("right")})
        assert found(RedisTable(RedisConfig.from_settings(right)), "a") == {"a": None}
        wrong = Settings.model_validate({**settings, "password": Secret("wrong")})
        with pytest.raises(PipelineError, match="check the table's url and password"):
            found(RedisTable(RedisConfig.from_settings(wrong)), "a")
        assert "wrong" not in repr(RedisConfig.from_settings(wrong))


@contextmanager
def running_tls_redis(*options: str) -> Iterator[int]:
    """The TLS port of a server. redis-server takes no port 0, and a free one may be taken by
    another process before it listens: it then gets another."""
    with ExitStack() as stack:
        for attempt in range(5):
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                port = free.getsockname()[1]
            try:
                stack.enter_context(running_redis("--tls-port", str(port), *options))
            except ServerEnded:
                if attempt == 4:
                    raise
            else:
                break
        yield port


def test_a_secured_server_is_read_where_its_authority_is_trusted(tmp_path: Path):
    authority = CertificateAuthority(tmp_path)
    signed = str(authority.issue_certificate("localhost"))
    certificates = (
        *("--tls-cert-file", signed, "--tls-key-file", signed),
        *("--tls-ca-cert-file", str(authority.certificate_path), "--tls-auth-clients", "no"),
    )
    with running_tls_redis(*certificates) as port:
        trusted = f"rediss://localhost:{port}/0?ssl_ca_certs={authority.certificate_path}"
        assert found(RedisTable(RedisConfig(trusted, "t:", keys_per_command=10)), "a") == {
            "a": None
        }
        with pytest.raises(PipelineError, match="certificate verify failed"):
            found(
                RedisTable(RedisConfig(f"rediss://localhost:{port}/0", "t:", keys_per_command=10)),
                "a",
            )


def test_a_url_that_is_none_is_told_without_its_password():
    with pytest.raises(PipelineError, match="http://there/ is no address of Redis") as told:
        RedisTable(RedisConfig("http://me:secret@there/", "t:", keys_per_command=10))
    assert "secret" not in str(told.value)
