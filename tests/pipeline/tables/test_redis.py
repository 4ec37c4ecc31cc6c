from __future__ import annotations

import socket
from pathlib import Path

import pytest
from support.certificates import Authority
from support.redis import RedisServer, running

from gateway.config.sections.pipelines import Redis as Settings
from gateway.config.types.fields import Secret
from gateway.errors import PipelineError
from gateway.pipeline.tables.redis import Away, Redis, Server


def found(redis: Redis, *keys: str) -> dict[str, bytes | None]:
    return {
        key: value
        for chunk, values, _ in redis.values(keys)
        for key, value in zip(chunk, values, strict=True)
    }


def test_rows_are_written_read_and_deleted_in_chunks(redis_server: RedisServer):
    redis = Redis(Server(redis_server.url, "t:", chunk=2))
    assert redis.store([("a", b"1"), ("b", b"2"), ("c", b"3"), ("d", b"4"), ("e", b"5")]) == 5
    redis.store([("b", None), ("x", None), ("a", b"6")])
    assert found(redis, *"abcde") == {"a": b"6", "b": None, "c": b"3", "d": b"4", "e": b"5"}


def test_of_a_key_given_twice_the_last_is_written(redis_server: RedisServer):
    redis = Redis(Server(redis_server.url, "t:", chunk=10))
    redis.store([("a", b"1"), ("b", b"1"), ("a", None), ("b", b"2")])
    assert found(redis, "a", "b") == {"a": None, "b": b"2"}


def test_how_far_a_table_is_loaded_stands_beside_it(redis_server: RedisServer):
    redis = Redis(Server(redis_server.url, "t:", chunk=10))
    assert redis.noted() == {}
    redis.note({"users:0": 10, "users:1": 7}, at=1234)
    redis.note({"users:1": 8}, at=1235)
    assert redis.noted() == {"users:0": 10, "users:1": 8, "at": 1235}


def test_what_is_no_text_is_no_row(redis_server: RedisServer):
    with redis_server.client() as client:
        client.hset("t:a", "x", 1)
    assert found(Redis(Server(redis_server.url, "t:", chunk=10)), "a") == {"a": None}


def test_a_server_that_is_gone_is_away(redis_server: RedisServer):
    redis = Redis(Server(redis_server.url, "t:", chunk=10))
    redis_server.stop()
    with pytest.raises(Away):
        found(redis, "a")


def test_a_wrong_password_is_told_at_once():
    with running("--requirepass", "right") as server:
        settings = {"kind": "redis", "url": server.url, "fields": {"name": "string"}}
        right = Settings.model_validate({**settings, "password": Secret("right")})
        assert found(Redis(Server.of(right)), "a") == {"a": None}
        wrong = Settings.model_validate({**settings, "password": Secret("wrong")})
        with pytest.raises(PipelineError, match="check the table's url and password"):
            found(Redis(Server.of(wrong)), "a")
        assert "wrong" not in repr(Server.of(wrong))


def test_a_secured_server_is_read_where_its_authority_is_trusted(tmp_path: Path):
    authority = Authority(tmp_path)
    signed = str(authority.signed("localhost"))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    tls = ("--tls-port", str(port), "--tls-cert-file", signed, "--tls-key-file", signed)
    with running(*tls, "--tls-ca-cert-file", str(authority.path), "--tls-auth-clients", "no"):
        trusted = f"rediss://localhost:{port}/0?ssl_ca_certs={authority.path}"
        assert found(Redis(Server(trusted, "t:", chunk=10)), "a") == {"a": None}
        with pytest.raises(PipelineError, match="certificate verify failed"):
            found(Redis(Server(f"rediss://localhost:{port}/0", "t:", chunk=10)), "a")


def test_a_url_that_is_none_is_told_without_its_password():
    with pytest.raises(PipelineError, match="http://there/ is no address of Redis") as told:
        Redis(Server("http://me:secret@there/", "t:", chunk=10))
    assert "secret" not in str(told.value)
