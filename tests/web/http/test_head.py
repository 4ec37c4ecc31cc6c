from __future__ import annotations

import pytest

from gateway.errors import RequestError
from gateway.web.http import head


def get_refusal(version: str, *headers: tuple[bytes, bytes]) -> RequestError:
    with pytest.raises(RequestError) as told:
        head.parse_body_length(version, list(headers))
    return told.value


HOST = (b"host", b"a")


def test_a_head_announces_how_long_its_body_is():
    assert head.parse_body_length("1.1", [HOST]) == 0
    assert head.parse_body_length("1.0", []) == 0
    assert head.parse_body_length("1.1", [HOST, (b"content-length", b"0042")]) == 42
    assert head.parse_body_length("1.1", [(b"transfer-encoding", b"Chunked"), HOST]) is None


@pytest.mark.parametrize(
    "host",
    [b"", b"a", b"a.b:80", b"a:", b"127.0.0.1:8080", b"[::1]", b"[::1]:80", b"xn--e1a.b", b"a_b"],
)
def test_a_host_is_a_name_or_an_address_and_perhaps_a_port(host):
    assert head.parse_body_length("1.1", [(b"host", host)]) == 0


@pytest.mark.parametrize(
    "host",
    [b"a b", b"a/b", b"u@a", b"a,b", b"a:b", b"a:80:80", b"[::1", b"::1]", b"\xff", b"a\n", b"a?"],
)
def test_what_is_no_host_is_refused(host):
    assert get_refusal("1.1", (b"host", host)).status == 400


def test_one_host_is_sent():
    assert "0 Host headers" in str(get_refusal("1.1"))
    assert "2 Host headers" in str(get_refusal("1.1", HOST, HOST))
    assert "2 Host headers" in str(get_refusal("1.0", HOST, HOST))


@pytest.mark.parametrize("version", ["0.9", "2.0", "3.0"])
def test_other_versions_are_not_supported(version):
    assert get_refusal(version, HOST).status == 505


@pytest.mark.parametrize("coding", [b"gzip", b"identity", b"gzip, chunked", b"chunked, chunked"])
def test_a_transfer_coding_but_chunked_is_not_implemented(coding):
    assert get_refusal("1.1", HOST, (b"transfer-encoding", coding)).status == 501


@pytest.mark.parametrize(
    "target, path, host",
    [
        (b"http://x.y", b"/", b"x.y"),
        (b"http://x.y:80/p?q", b"/p?q", b"x.y:80"),
        (b"HTTPS://x.y/?", b"/?", b"x.y"),
        (b"http://x.y?q=http://z/", b"/?q=http://z/", b"x.y"),
        (b"http://[::1]:8/a//b", b"/a//b", b"[::1]:8"),
    ],
)
def test_an_absolute_target_gives_the_path_and_the_host(target, path, host):
    headers = [(b"accept", b"*/*"), HOST]
    assert head.to_origin_form(b"GET", target, headers) == path
    assert headers == [(b"accept", b"*/*"), (b"host", host)]


def test_options_may_ask_the_whole_server():
    assert head.to_origin_form(b"OPTIONS", b"*", [HOST]) == b"*"


@pytest.mark.parametrize(
    "target",
    [b"*", b"a", b"ftp://a/", b"http://", b"http:///p", b"http://u@a/", b"http://a b/", b"/a#b"],
)
def test_a_target_of_another_kind_is_refused(target):
    with pytest.raises(RequestError) as told:
        head.to_origin_form(b"GET", target, [HOST])
    assert told.value.status == 400


def test_connect_is_not_implemented():
    with pytest.raises(RequestError) as told:
        head.to_origin_form(b"CONNECT", b"a:80", [HOST])
    assert told.value.status == 501


def test_the_size_is_that_on_the_wire():
    wire = b"GET /a HTTP/1.1\r\nHost: b\r\nX: y\r\n\r\n"
    assert head.head_size(b"/a", [(b"host", b"b"), (b"x", b"y")]) == len(wire)
