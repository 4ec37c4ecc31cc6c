"""Every wrong file is told where and what: `§` stands before the place a message names."""

from __future__ import annotations

import re

import pytest

from gateway.config import loads
from gateway.errors import ConfigError

KAFKA = "kafka: {servers: [localhost:9092], topics: [{name: orders}, {name: stock}]}\n"
TOPIC = "kafka:\n  servers: [localhost:9092]\n  topics:\n    - name: orders\n      "
ROUTE = KAFKA + "routes:\n  - when: [{path: '/events/{customer}'}]\n    with:\n      "
SASL = "kafka:\n  servers: [localhost:9092]\n  security:\n    "
MASKED = (
    KAFKA + "guards:\n  g: {type: jwt, keys: 'http://k'}\n"
    "routes:\n- when: [{path: /a}]\n  guarded: {g: []}\n  with: {topic: orders, fields: "
)
JWT = "guards:\n  jwt0: {type: jwt, keys: http://keys, attributes: {region: zone}}\n"

CASES = {
    # The file itself.
    "empty": ("§", "empty kafka.servers"),
    "only a comment": ("§# nothing\n", "empty"),
    "only null": ("§null", "empty"),
    "a list": ("§- a\n", "options a list"),
    "a word": ("§hello\n", "options 'hello'"),
    "tab indents": ("kafka:\n§\tservers: x\n", "tab spaces"),
    "tab after spaces": ("kafka:\n  servers: [a:1]\n §\track: x\n", "tab spaces"),
    "unclosed bracket": ("kafka: {servers: §[a:1\n", "never closed"),
    "unclosed quote": ("name: §'orders\n" + KAFKA, "never closed"),
    "two colons": ("name: a§: b\n" + KAFKA, "':' quote"),
    "bad indentation": ("kafka:\n  servers: [a:1]\n §rack: x\n", "indentation"),
    "unquoted substitution in braces": ("kafka: {servers: $§{env.K}}\n", "quotes ${..}"),
    "reserved character": ("name: §@home\n" + KAFKA, "'@' quotes"),
    "control character": ("name: a§\x07\n" + KAFKA, "U+0007"),
    "second document": (KAFKA + "§---\nname: a\n", "second document"),
    "tag": ("name: §!!python/object:os.system x\n" + KAFKA, "tag remove"),
    "custom tag": ("name: §!env X\n" + KAFKA, "tag '!env'"),
    "merge key": ("a: &a {b: 1}\n" + KAFKA + "listen:\n  §<<: *a\n", "merge alias", "§a: unknown"),
    "unknown alias": ("name: §*nobody\n" + KAFKA, "'&nobody' before"),
    "alias of itself": ("kafka: &k {servers: §*k}\n", "inside its own anchor"),
    "anchor bomb": (
        "a: &a [x,x,x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a,*a]\n"
        "c: &c [*b,*b,*b,*b,*b,*b,*b,*b,*b,*b]\nd: &d [*c,*c,*c,*c,*c,*c,*c,*c,*c,*c]\n"
        "e: [*d,*d,*d,*d,*d,*d,*d,*d,*d,*d]\n",
        "20000 aliases",
    ),
    "too deep": ("a: " + "[" * 32 + "§" + "[" * 60, "deeper 32"),
    "duplicate key": ("name: a\n" + KAFKA + "§name: b\n", "duplicate 'name' line 1"),
    "duplicate key inside": (TOPIC + "cache: {age: 1m, §age: 2m}\n", "duplicate 'age'"),
    "number as key": (KAFKA + "guards:\n  §1: {}\n", "key 1 quotes"),
    "true as key": (KAFKA + "guards:\n  §true: {}\n", "key true quotes"),
    "null as key": (KAFKA + "guards:\n  §~: {}\n", "key ~ quotes"),
    "list as key": (KAFKA + "guards:\n  ? §[a]\n  : {}\n", "key must be text"),
    # Keys.
    "unknown key": (TOPIC + "§partitonReadyTimeout: 5s\n",
                    "unknown 'partitonReadyTimeout' kafka.topics[0] 'partitionReadyTimeout'?"),
    "unknown key at the top": (KAFKA + "§kafak: x\n", "unknown 'kafak' 'kafka'?"),
    "another spelling": (TOPIC + "§default_offset: live\n", "'defaultOffset'?"),
    "zilla's word": (KAFKA + "listen: {§acces-control: {}}\n", "'access-control'?"),
    "an option by two names": (
        KAFKA + "listen: {access-control: {}, §accessControl: {}}\n", "unknown 'accessControl'"),
    "a key like no other": (KAFKA + "listen: {§zzz: 1}\n", "'zzz' host, port"),
    # `use one of acks, allow, async` said nothing of where it belongs.
    "key of the section around": (
        KAFKA + "routes:\n- when: [{path: /a}]\n  with: {topic: orders, §guarded: {g: []}}\n",
        "'guarded' routes[0].with: belongs beside `with`"),
    "key of a section further out": (KAFKA + "listen: {limits: {§workers: 2}}\n",
                                     "'workers' listen.limits; belongs beside 'limits'"),
    "empty key": (KAFKA + "§'': 1\n", "unknown ''"),
    "empty guard name": (KAFKA + "guards:\n  §'': {type: jwt, keys: http://k}\n", "empty"),
    "missing servers": ("§kafka: {rack: a}\n", "'servers' missing kafka"),
    "missing kafka": ("§name: a\n", "'kafka' missing"),
    "missing topic name": ("kafka:\n  servers: [a:1]\n  topics:\n    - §cache: {age: 1m}\n",
                           "'name' missing kafka.topics[0]"),
    "missing path": (KAFKA + "routes: [{when: [§{method: GET}], with: {topic: orders}}]\n",
                     "'path' missing"),
    "missing when": (KAFKA + "routes:\n  - §with: {topic: orders}\n", "'when' missing routes[0]"),
    # Types.
    "nothing where options are": ("§kafka:\n", "kafka options nothing"),
    "text where options are": (KAFKA + "listen: §8080\n", "listen: options 8080"),
    "text where a list is": (KAFKA + "routes: §all\n", "routes list 'all'"),
    "options where a list is": (KAFKA + "routes: §{when: []}\n", "list options"),
    "list where options are": (KAFKA + "listen: §[a]\n", "options list"),
    "number as name": ("name: §12\n" + KAFKA, "name text 12 quotes"),
    # It was to be put in quotes, which makes it another value.
    "list as name": ("name: §[a, b]\n" + KAFKA, "name text ['a', 'b'] single one"),
    "a list of numbers as issuer": (
        KAFKA + "guards: {g: {type: jwt, keys: http://k, issuer: [§7]}}\n", "issuer text 7 quotes"),
    "boolean as name": ("name: §true\n" + KAFKA, "text true quotes"),
    "empty name": ("name: §''\n" + KAFKA, "name empty"),
    "name of two lines": ('name: §"a\\nb"\n' + KAFKA, "control line break"),
    "yes is no boolean": (SASL + "tls: {verify: §no}\n", "'no' true or false"),
    "list as duration": (TOPIC + "clockSkew: §[1s]\n", "clockSkew 5s"),
    "word as choice": (TOPIC + "defaultOffset: §latest\n", "'latest' historical live"),
    "near choice": (TOPIC + "offsetOutOfRange: §earlyest\n", "'earliest'?"),
    "boolean as choice": (TOPIC + "isolation: §true\n", "read_committed read_uncommitted"),
    # Units.
    "duration without unit": (TOPIC + "partitionReadyTimeout: §5\n", "5 unit 5s"),
    "quoted duration without unit": (TOPIC + "partitionReadyTimeout: §'5'\n", "unit 5s"),
    "duration in words": (TOPIC + "clockSkew: §5 seconds\n", "'5s'?"),
    "duration in capitals": (TOPIC + "clockSkew: §10M\n", "'10m'?"),
    "negative duration": (TOPIC + "clockSkew: §-5s\n", "'-5s' number unit"),
    "iso duration": (TOPIC + "clockSkew: §PT5S\n", "'PT5S' number unit"),
    "clock as duration": (TOPIC + "clockSkew: §12:30\n", "'12:30' unit"),
    "unknown unit": (TOPIC + "clockSkew: §5fortnights\n", "'fortnights' unit"),
    "duration too long": (TOPIC + "clockSkew: §2d\n", "2d range 1d"),
    "size without unit": (TOPIC + "cache: {bytes: §64}\n", "64 unit 64MiB"),
    "size of another case": (TOPIC + "cache: {bytes: §64mb}\n", "'64MB'?"),
    "size by letter": (TOPIC + "cache: {bytes: §64M}\n", "'64MiB'?"),
    "size of half a byte": (TOPIC + "cache: {bytes: §1.5B}\n", "whole"),
    "size too large": ("memory: §2000TiB\n" + KAFKA, "too large"),
    "memory too small": ("memory: §1kB\n" + KAFKA, "memory range 1MiB"),
    "reconnect upside down": (TOPIC + "reconnect: {initial: 2s, max: §1s}\n", "1s less 2s"),
    "initial over the default max": (TOPIC + "reconnect: {initial: §2s}\n", "1s less 2s"),
    "heartbeat too short": (ROUTE + "topic: orders\n      heartbeat: §10ms\n", "range 100ms 10m"),
    "heartbeat too long": (ROUTE + "topic: orders\n      heartbeat: §1h\n", "range 10m"),
    "history in words": (ROUTE + "topic: orders\n      history: §everything\n", "none, all 24h"),
    "history as number": (ROUTE + "topic: orders\n      history: §24\n", "24 unit 24h"),
    # Addresses.
    "port too high": (KAFKA + "listen: {port: §80800}\n", "80800 range 65535"),
    "negative port": (KAFKA + "listen: {port: §-1}\n", "-1 range 0 65535"),
    "port as text": (KAFKA + "listen: {port: §'8080'}\n", "whole number quotes"),
    "port with underscore": (KAFKA + "listen: {port: §8_080}\n", "'8_080' whole number"),
    "port as fraction": (KAFKA + "listen: {port: §80.5}\n", "80.5 whole number"),
    "compression by name": (
        KAFKA + "listen: {websocket: {compression: §deflate}}\n",
        "deflate neither true nor false",
    ),
    "host with port": (KAFKA + "listen: {host: §'localhost:80'}\n", "host without a port"),
    "host of few letters with port": (KAFKA + "listen: {host: §'a:80'}\n", "host without a port"),
    "origin with a slash": (
        KAFKA + "listen: {access-control: {policy: cross-origin, "
        "allow: {origins: ['https://a', §'https://Shop.example/']}}}\n",
        "origin 'https://shop.example'",
    ),
    "pattern of origins": (
        KAFKA + "listen: {access-control: {policy: cross-origin, "
        "allow: {origins: ['capacitor://localhost', 'chrome-extension://abcd', "
        "§'https://*.shop.example']}}}\n",
        "'https://*.shop.example' patterns are not supported",
    ),
    "origin without scheme": (
        KAFKA + "listen: {access-control: {policy: cross-origin, allow: {origins: [§a]}}}\n",
        "origin https://shop.example",
    ),
    # The message suggested what it refused.
    "origin with other letters": (
        KAFKA + "listen: {access-control: {policy: cross-origin, "
        "allow: {origins: [§'http://bücher.example']}}}\n",
        "origin 'http://xn--bcher-kva.example'",
    ),
    "origin with a space": (
        KAFKA + "listen: {access-control: {policy: cross-origin, "
        "allow: {origins: [§'http://a b']}}}\n",
        "origin https://shop.example",
    ),
    "origin with an impossible port": (
        KAFKA + "listen: {access-control: {policy: cross-origin, "
        "allow: {origins: [§'http://a:99999']}}}\n",
        "origin https://shop.example",
    ),
    # `expects options` did not say that the name needs quotes.
    "number as a topic": (
        "kafka: {servers: [a:1], topics: [§123]}\n", "kafka.topics[0] text 123 quotes"),
    "nothing as a topic": ("kafka: {servers: [a:1], topics: [§~]}\n", "kafka.topics[0] empty"),
    # Each route that named the topic was reported, too.
    "topics as a text": (
        "kafka: {servers: [a:1], topics: §orders}\nroutes: [{path: /a, topic: orders}]\n",
        "kafka.topics list 'orders'"),
    "topics as options": (
        "kafka: {servers: [a:1], topics: §{orders: {}}}\nroutes: [{path: /a, topic: orders}]\n",
        "kafka.topics list"),
    "guarded by a text": (
        JWT + KAFKA + "routes: [{path: /a, topic: orders, guarded: §jwt0}]\n", "[jwt0]"),
    "guarded by a list with roles": (
        JWT + KAFKA + "routes: [{path: /a, topic: orders, guarded: §[jwt0: [admin]]}]\n",
        "{jwt0: [ROLE]}"),
    "guarded by a number": (
        JWT + KAFKA + "routes: [{path: /a, topic: orders, guarded: §[7]}]\n", "7 quotes"),
    # The route was open, and nobody said so.
    "guarded by an empty list": (
        JWT + KAFKA + "routes: [{path: /a, topic: orders, guarded: §[]}]\n",
        "routes[0].guarded empty everybody"),
    "guarded by empty options": (
        JWT + KAFKA + "routes: [{path: /a, topic: orders, guarded: §{}}]\n",
        "routes[0].guarded empty everybody"),
    "guarded by nothing": (
        JWT + KAFKA + "routes: [{path: /a, topic: orders, guarded: §~}]\n",
        "routes[0].guarded empty"),
    "guards as a list": (
        KAFKA + "guards: §[jwt0]\nroutes: [{path: /a, topic: orders, guarded: [jwt0]}]\n",
        "guards options a list"),
    "catalogs as a text": (
        "catalogs: §registry\nkafka: {servers: [a:1], topics: "
        "[{name: a, value: {model: avro, catalog: registry}}]}\n", "catalogs options"),
    "server without port": ("kafka: {servers: [a:1, §localhost]}\n", "'localhost:9092'"),
    "server with protocol": ("kafka: {servers: [§'PLAINTEXT://a:9092']}\n", "protocol host:port"),
    "server with port 0": ("kafka: {servers: [§'a:0']}\n", "port 65535"),
    "server with a word as port": ("kafka: {servers: [§'a:kafka']}\n", "port 65535"),
    "server as number": ("kafka: {servers: [§9092]}\n", "text 9092"),
    "bare address of version 6": ("kafka: {servers: [§'::1:9092']}\n", "host:port"),
    "servers as text": ("kafka: {servers: §'a:9092,b'}\n", "'b:9092'"),
    "no servers": ("kafka: {servers: §[]}\n", "[localhost:9092] embedded"),
    "registry without scheme": (KAFKA + "catalogs: {r: {type: schema-registry, url: §'r:8081'}}\n",
                                "URL http://localhost:8081"),
    "one registry of several without scheme": (
        KAFKA + "catalogs: {r: {type: schema-registry, url: ['http://a', §'r:8081']}}\n",
        "URL http://localhost:8081",
    ),
    "a token beside a password": (
        KAFKA + "catalogs: {r: {type: schema-registry, url: 'http://a', username: u, password: p, "
        "§token: t}}\n",
        "'token' excludes 'username'",
    ),
    "onInvalid of what is passed on": (
        "kafka: {servers: [a:1], topics: [{name: t, value: {model: json, §onInvalid: skip}}]}\n",
        "model json is passed on remove onInvalid",
    ),
    "a partitioner of keys that are shown as something else": (
        "kafka: {servers: [a:1], topics: [{name: t, key: {model: long}, partitioner: §murmur2}]}\n",
        "partitioner depend on the bytes of keys",
    ),
    "credentials in a URL": (
        KAFKA + "catalogs: {r: {type: schema-registry, url: §'http://u:hunter2@r'}}\n",
        "credentials username password",
    ),
    # Topics and names.
    "topic with a space": ("kafka: {servers: [a:1], topics: [{name: §my orders}]}\n", "letters"),
    "topic of dots": ("kafka: {servers: [a:1], topics: [{name: §..}]}\n", "letters"),
    "glob as topic": ("kafka: {servers: [a:1], topics: [{name: §'orders*'}]}\n", "letters"),
    "topic twice": ("kafka: {servers: [a:1], topics: [{name: a}, {name: §a}]}\n", "topics[0]"),
    "bootstrap of an unknown topic": (
        "kafka:\n  servers: [a:1]\n  bootstrap: [§order]\n  topics: [{name: orders}]\n",
        "'order' 'orders'?",
    ),
    "bootstrap twice": (
        "kafka: {servers: [a:1], bootstrap: [orders, §orders], topics: [{name: orders}]}\n",
        "before remove",
    ),
    "unknown catalog": (
        TOPIC + "value: {model: avro, catalog: §reg}\ncatalogs:\n"
        "  registry0: {type: schema-registry, url: http://r}\n",
        "catalog 'reg' registry0",
    ),
    "no catalog at all": (TOPIC + "value: {model: avro, catalog: §r}\n", "add to catalogs"),
    "avro without catalog": (TOPIC + "value: {model: §avro}\n", "schema catalog"),
    "json with catalog": (TOPIC + "value: {model: json, §catalog: r}\n", "no schema remove",
                          "r"),
    "catalog without model": (TOPIC + "value: {§catalog: r}\n", "model remove", "catalog"),
    "unknown model": (TOPIC + "value: {model: §jason}\n", "'json'?"),
    "empty transform": (TOPIC + "transforms: [§{}]\n", "extract-key"),
    "transform of a parameter": (TOPIC + "transforms: [{extract-key: §'${params.a}'}]\n",
                                 "message.value"),
    "unknown partitioner": (TOPIC + "partitioner: §murmur3\n", "'murmur2'?"),
    "partitioner of keys that are extracted": (
        TOPIC + "partitioner: §murmur2\n"
        "      transforms: [{extract-key: '${message.value.a}'}]\n", "extract-key remove"),
    # Routes.
    "unknown topic": (ROUTE + "topic: §order\n", "topic 'order' 'orders'?"),
    "unknown topic in a list": (ROUTE + "topics: [orders, §stocks]\n", "'stocks' 'stock'?"),
    "no topic can match": (ROUTE + "topic: §'x-${params.customer}'\n", "match orders, stock"),
    "topic and topics": (ROUTE + "topic: orders\n      §topics: [stock]\n", "excludes 'topic'"),
    "neither topic nor topics": (KAFKA + "routes:\n  - when: [{path: /a}]\n    §with: {}\n",
                                 "'topic' missing"),
    "null as topic": (KAFKA + "routes:\n  - when: [{path: /a}]\n    §with: {topic: }\n",
                      "'topic' missing"),
    "no topics": (ROUTE + "topics: §[]\n", "empty"),
    "no paths": (KAFKA + "routes:\n  - when: §[]\n    with: {topic: orders}\n", "empty path"),
    "method": (KAFKA + "routes: [{when: [{path: /a, method: §SEND}], with: {topic: orders}}]\n",
               "'SEND' GET POST"),
    "empty filter": (ROUTE + "topic: orders\n      filters: [§{}]\n", "every record"),
    "filter of an unknown parameter": (
        ROUTE + "topic: orders\n      filters: [{key: §'${params.costumer}'}]\n",
        "'costumer' path 'customer'?",
    ),
    "filter of a header by an unknown parameter": (
        ROUTE + "topic: orders\n      filters: [{headers: {a: §'${params.x}'}}]\n", "'x' path",
    ),
    "filter by no pointer": (ROUTE + "topic: orders\n      filters: [{value: {§region: a}}]\n",
                             "JSON pointer /region"),
    "filter by a list": (ROUTE + "topic: orders\n      filters: [{key: §[a, b]}]\n",
                         "key one text {in: [..]}"),
    "empty condition": (ROUTE + "topic: orders\n      filters: [{key: §{}}]\n", "always exists"),
    "unknown condition": (ROUTE + "topic: orders\n      filters: [{key: {§prefx: a}}]\n",
                          "'prefx' filters[0].key 'prefix'?"),
    "condition on a header by another name": (
        ROUTE + "topic: orders\n      filters: [{headers: {a: {§equals: b}}}]\n",
        "'equals' headers.a prefix",
    ),
    "empty list of texts": (ROUTE + "topic: orders\n      filters: [{key: {in: §[]}}]\n",
                            "key.in empty one"),
    "a text where a list of them is": (
        ROUTE + "topic: orders\n      filters: [{key: {in: §a}}]\n", "key.in list 'a'"),
    "options in a list of texts": (
        ROUTE + "topic: orders\n      filters: [{key: {in: [a, §{b: c}]}}]\n", "in[1] text"),
    "prefix that is a number": (
        ROUTE + "topic: orders\n      filters: [{key: {prefix: §7}}]\n", "prefix text 7 quotes"),
    "presence in words": (
        ROUTE + "topic: orders\n      filters: [{value: {/a: {exists: §yes}}}]\n", "'yes' true"),
    "absent and more": (
        ROUTE + "topic: orders\n      filters: [{key: {prefix: a, §exists: false}}]\n",
        "'exists: false' excludes",
    ),
    "bound that is a word": (
        ROUTE + "topic: orders\n      filters: [{value: {/a: {gt: §many}}}]\n", "'many' number 10"),
    "bound that is a boolean": (
        ROUTE + "topic: orders\n      filters: [{value: {/a: {lte: §true}}}]\n", "true number 10"),
    "bound that no double holds": (
        ROUTE + "topic: orders\n      filters: [{value: {/a: {lt: §1e999}}}]\n", "number quotes"),
    "bound of another grammar": (
        ROUTE + "topic: orders\n      filters: [{value: {/a: {gt: §'0x10'}}}]\n", "'0x10' number"),
    "bound of an unknown parameter": (
        ROUTE + "topic: orders\n      filters: [{value: {/a: {gte: §'${params.min}'}}}]\n",
        "'min' path",
    ),
    "text of a list by an unknown parameter": (
        ROUTE + "topic: orders\n      filters: [{key: {in: [a, §'${params.costumer}']}}]\n",
        "'costumer' 'customer'?",
    ),
    "condition of a message": (
        ROUTE + "topic: orders\n      filters: [{key: {prefix: §'${message.key}'}}]\n",
        "message.key params.name",
    ),
    "filter by the client's own": (
        ROUTE + "topic: orders\n      filters: [{key: §'${query.filter}'}]\n", "?filter= another"),
    "unknown mode": (ROUTE + "topic: orders\n      mode: §snapsot\n", "'snapsot' 'snapshot'?"),
    "unknown slowClient": (ROUTE + "topic: orders\n      slowClient: §conflat\n", "'conflate'?"),
    "interval without unit": (ROUTE + "topic: orders\n      interval: §250\n", "250 no unit"),
    "interval too short": (ROUTE + "topic: orders\n      interval: §1ms\n", "1ms range 10ms 1m"),
    "max rate without time": (ROUTE + "topic: orders\n      maxRate: §100\n", "100 unit 20/s"),
    "max rate of no time": (ROUTE + "topic: orders\n      maxRate: §100/sec\n", "'100/s'?"),
    "max rate of nothing": (ROUTE + "topic: orders\n      maxRate: §0/s\n", "0/s range 1/s"),
    "max rate misspelt": (ROUTE + "topic: orders\n      §maxrate: 1/s\n", "'maxRate'?"),
    "interval misspelt": (ROUTE + "topic: orders\n      §intervall: 1s\n", "'interval'?"),
    "a snapshot that skips": (ROUTE + "topic: orders\n      mode: snapshot\n"
                              "      slowClient: §skip\n", "skip latest key conflate"),
    "produce in words": (ROUTE + "topic: orders\n      produce: §yes\n", "'yes' true or false"),
    "clients' filters in words": (
        ROUTE + "topic: orders\n      clientFilters: §allowed\n", "'allowed' true or false"),
    "clients' fields in another spelling": (
        ROUTE + "topic: orders\n      §client_fields: true\n", "'clientFields'?"),
    "field by no pointer": (ROUTE + "topic: orders\n      fields: [/id, §name]\n",
                            "fields[1] 'name' JSON pointer"),
    "no fields": (ROUTE + "topic: orders\n      fields: §[]\n", "fields empty pointer"),
    "fields as text": (ROUTE + "topic: orders\n      fields: §/id\n", "fields list '/id'"),
    "a field for some below one for all": (
        MASKED + "[/id, /customer, {field: §/customer/email, guarded: {g: [support]}}]}\n",
        "fields[2] '/customer/email' everybody fields[1] '/customer' guard"),
    "a field for some that is for all, too": (
        MASKED + "[{field: §/email, guarded: {g: []}}, /email]}\n", "'/email' everybody fields[1]"),
    "a field for some within a list for all": (
        MASKED + "[/items, {field: §/items/0/price, guarded: {g: []}}]}\n", "'/items' everybody"),
    "a field for some below one for more": (
        MASKED + "[{field: /a, guarded: {g: []}}, {field: §/a/b, guarded: {g: [support]}}]}\n",
        "'/a/b' whoever fields[0] '/a'"),
    "a sidecar for everybody": (
        KAFKA + "listen: {host: 0.0.0.0}\n§sidecar: {producer: {}}\n",
        "nobody sidecar.guarded 127.0.0.1 exposed: true"),
    "a sidecar for everybody by a name": (
        KAFKA + "listen: {host: gateway.internal}\n§sidecar: {admin: {}, exposed: false}\n",
        "nobody sidecar.guarded"),
    "nothing allowed": (ROUTE + "topic: '${params.customer}'\n      allow: §[]\n", "allow empty"),
    "pattern of another kind": (
        ROUTE + "topic: '${params.customer}'\n      allow: [orders, §'pay-?']\n", "'pay-?' pay-*"),
    "allowed, but nothing is chosen": (
        ROUTE + "topic: orders\n      §allow: [orders]\n", "'allow' path ${params.topics}"),
    "a part of a name is chosen": (
        ROUTE + "topic: §'pay-${params.customer}'\n      allow: ['pay-*']\n", "part whole"),
    "unknown topic beside chosen ones": (
        ROUTE + "topics: ['${params.customer}', §order]\n      allow: ['*']\n",
        "'order' 'orders'?",
    ),
    "filter of a message": (ROUTE + "topic: orders\n      filters: [{key: §'${message.key}'}]\n",
                            "message.key params.name"),
    "no such template": (ROUTE + "topic: orders\n      filters: [{key: §'${parms.a}'}]\n",
                         "'params'?"),
    "malformed template": (ROUTE + "topic: orders\n      filters: [{key: §'${params}'}]\n",
                           "malformed ${params.name}"),
    "unclosed template": (ROUTE + "topic: orders\n      filters: [{key: §'${params.a'}]\n",
                          "not closed"),
    "template without guard": (
        ROUTE + "topic: orders\n      filters: [{key: §\"${guarded['jwt0'].identity}\"}]\n",
        "not guarded 'jwt0'",
    ),
    "template of an unknown attribute": (
        JWT + KAFKA + "routes:\n  - when: [{path: /a}]\n    guarded: {jwt0: []}\n    with:\n"
        "      topic: orders\n"
        "      filters: [{key: §\"${guarded['jwt0'].attributes.regoin}\"}]\n",
        "attribute 'regoin' 'region'?",
    ),
    "unknown guard": (
        JWT + KAFKA + "routes:\n  - when: [{path: /a}]\n    guarded: {§jwt1: [r]}\n"
        "    with: {topic: orders}\n",
        "guard 'jwt1' 'jwt0'?",
    ),
    "template outside a route": (KAFKA + "listen: {host: §'${params.host}'}\n",
                                 "per request ${env.NAME}"),
    "parameter of one path only": (
        KAFKA + "routes:\n  - when: [{path: '/a/{x}'}, {path: /b}]\n    with:\n"
        "      topic: orders\n      filters: [{key: §'${params.x}'}]\n",
        "not every path 'x'",
    ),
    # Paths.
    "path without slash": (
        KAFKA + "routes: [{when: [{path: §events}], with: {topic: orders}}]\n", "'/events'"),
    "path with a query": (
        KAFKA + "routes: [{when: [{path: §'/e?x=1'}], with: {topic: orders}}]\n", "segment"),
    "path with an empty segment": (
        KAFKA + "routes: [{when: [{path: §/e//x}], with: {topic: orders}}]\n", "'/e/x'"),
    "path that climbs": (
        KAFKA + "routes: [{when: [{path: §/e/../x}], with: {topic: orders}}]\n", "'..'"),
    "star in the middle": (
        KAFKA + "routes: [{when: [{path: §'/e/*/x'}], with: {topic: orders}}]\n", "'*' end"),
    "half a parameter": (
        KAFKA + "routes: [{when: [{path: §'/e/{id}.json'}], with: {topic: orders}}]\n",
        "whole segment",
    ),
    "two parameters of one name": (
        KAFKA + "routes: [{when: [{path: §'/{a}/{a}'}], with: {topic: orders}}]\n", "two 'a'"),
    "the same path twice": (
        KAFKA + "routes:\n  - {when: [{path: '/e/{a}'}], with: {topic: orders}}\n"
        "  - {when: [{path: §'/e/{b}'}], with: {topic: orders}}\n",
        "taken routes[0] '/e/{a}'",
    ),
    "the same path twice in a route": (
        KAFKA + "routes: [{when: [{path: /e}, {path: §/e}], with: {topic: orders}}]\n", "taken"),
    "a path never reached": (
        KAFKA + "routes:\n  - {when: [{path: '/e/*'}], with: {topic: orders}}\n"
        "  - {when: [{path: §/e/orders}], with: {topic: orders}}\n",
        "never reached routes[0] before",
    ),
    "reserved path": (
        KAFKA + "routes: [{when: [{path: §/health/live}], with: {topic: orders}}]\n", "own"),
    "the path of the page": (
        KAFKA + "routes: [{when: [{path: §/}], with: {topic: orders}}]\n", "own"),
    "the path of the description": (
        KAFKA + "routes: [{when: [{path: §/asyncapi.json}], with: {topic: orders}}]\n", "own"),
    "metrics path": (
        KAFKA + "telemetry: {metrics: {prometheus: /m}}\n"
        "routes: [{when: [{path: §/m}], with: {topic: orders}}]\n",
        "own another",
    ),
    "metrics on a reserved path": (
        KAFKA + "telemetry: {metrics: {prometheus: §/health/ready}}\n", "own another"),
    "metrics on a pattern": (KAFKA + "telemetry: {metrics: {prometheus: §'/m/*'}}\n", "fixed"),
    # Security, guards, CORS.
    "unknown mechanism": (SASL + "sasl: {mechanism: §scram-sha-1}\n", "'scram-sha-512'?"),
    "no password": (SASL + "§sasl: {mechanism: plain, username: u}\n", "'password' missing"),
    "null as password": (
        SASL + "§sasl: {mechanism: plain, username: u, password: ~}\n", "'password' missing"),
    "password in a server": ("kafka: {servers: [§'u:hunter2@b:9092']}\n", "host:port"),
    "password as number": (
        SASL + "sasl: {mechanism: plain, username: u, password: §4711}\n", "password text quotes"),
    "empty password": (
        SASL + "sasl: {mechanism: plain, username: u, password: §''}\n", "password empty ${env"),
    "token for plain": (
        SASL + "sasl: {mechanism: plain, username: u, password: p, §token: t}\n", "'token' plain"),
    "oauth without token": (SASL + "§sasl: {mechanism: oauthbearer}\n", "tokenUrl tokenFile"),
    "oauth with two tokens": (
        SASL + "sasl: {mechanism: oauthbearer, token: a, §tokenFile: pyproject.toml}\n",
        "excludes 'token'",
        "tokenFile",
    ),
    "oauth without secret": (
        SASL + "§sasl: {mechanism: oauthbearer, tokenUrl: http://t, clientId: c}\n",
        "'clientSecret' missing",
    ),
    "certificate without key": (SASL + "tls: {§certificate: nowhere.pem}\n", "'key'", "nowhere"),
    "missing file": (SASL + "tls: {ca: §nowhere.pem}\n", "'nowhere.pem' exist"),
    "certificate as text": (SASL + "tls: {ca: §'-----BEGIN CERTIFICATE-----'}\n", "path"),
    "guard of no type": (KAFKA + "guards:\n  §g: {keys: http://k}\n", "'type' missing guards.g"),
    "guard of another type": (KAFKA + "guards: {g: {type: §jtw, keys: http://k}}\n", "'jwt'?"),
    "guard of no kind": (KAFKA + "guards: {g: {type: §7}}\n", "7 jwt, http"),
    "guard that is a word": (KAFKA + "guards: {g: §jwt}\n", "options 'jwt'"),
    "key of another guard": (KAFKA + "guards: {g: {type: http, url: http://a, §urll: b}}\n",
                             "'urll' guards.g 'url'?"),
    "key below another guard": (
        KAFKA + "guards: {g: {type: http, url: http://a, forward: {§heders: []}}}\n",
        "'heders' guards.g.forward 'headers'?"),
    "guard without keys": (KAFKA + "guards: {g: {type: jwt, keys: §[]}}\n", "no key URL"),
    "key without modulus": (
        KAFKA + "guards: {g: {type: jwt, keys: [§{kty: RSA, e: AQAB}]}}\n", "'n' missing RSA"),
    "private key": (
        KAFKA + "guards: {g: {type: jwt, keys: [{kty: OKP, crv: Ed25519, x: b, §d: s}]}}\n",
        "private"),
    "key that is none": (
        KAFKA + "guards: {g: {type: jwt, keys: [§{kty: RSA, n: '!', e: AQAB}]}}\n", "no key"),
    "key of an unknown curve": (
        KAFKA + "guards: {g: {type: jwt, keys: [{kty: EC, crv: §P-257, x: a, y: b}]}}\n",
        "'P-257' P-256"),
    "algorithm of another key": (
        KAFKA + "guards: {g: {type: jwt, keys: [{kty: oct, k: YWJj, alg: §RS256}]}}\n",
        "RS256 HS256"),
    "no signature": (KAFKA + "guards: {g: {type: jwt, keys: http://k, algorithms: [§none]}}\n",
                     "'none' RS256"),
    "no algorithms": (KAFKA + "guards: {g: {type: jwt, keys: http://k, algorithms: §[]}}\n",
                      "empty leave out"),
    "shared secret of a URL": (
        KAFKA + "guards: {g: {type: jwt, keys: http://k, algorithms: [RS256, §HS256]}}\n",
        "HS256 shared secret"),
    "algorithm of no key": (
        KAFKA + "guards: {g: {type: jwt, keys: [{kty: oct, k: YWJj}], algorithms: [§ES256]}}\n",
        "no key ES256"),
    "keys of a list do not age": (
        KAFKA + "guards: {g: {type: jwt, keys: [{kty: oct, k: YWJj}], §jwks: {refresh: 1m}}}\n",
        "URL"),
    "keys that are fetched too late": (
        KAFKA + "guards: {g: {type: jwt, keys: http://k, jwks: {refresh: 1h, maxAge: §1m}}}\n",
        "maxAge refresh 1h"),
    "credentials of nowhere": (
        KAFKA + "guards: {g: {type: jwt, keys: http://k, credentials: §{}}}\n", "headers cookies"),
    "credentials without a place": (
        KAFKA + "guards: {g: {type: jwt, keys: http://k, credentials: {cookies: {a: §b}}}}\n",
        "{credentials}"),
    "credentials in a header of HTTP itself": (
        KAFKA + "guards: {g: {type: jwt, keys: http://k, credentials:\n"
        "  {headers: {§Host: '{credentials}'}}}}\n", "'Host' authorization"),
    "credentials in the gateway's query": (
        KAFKA + "guards: {g: {type: jwt, keys: http://k, credentials:\n"
        "  {query: {§from: '{credentials}'}}}}\n", "?from= gateway itself"),
    "credentials as a filter": (
        KAFKA + "guards: {g: {type: jwt, keys: http://k, credentials:\n"
        "  {query: {t: '{credentials}'}}}}\nroutes:\n- when: [{path: /a}]\n  guarded: {g: []}\n"
        "  with: {topic: orders, filters: [{key: §'${query.t}'}]}\n", "?t= credentials 'g'"),
    "application that is shown nothing": (
        KAFKA + "guards: {g: {type: http, url: http://a, forward: §{headers: []}}}\n", "nothing"),
    "application that is shown the length": (
        KAFKA + "guards: {g: {type: http, url: http://a, forward: {headers: [§Content-Length]}}}\n",
        "header"),
    "application that is shown a method by the client": (
        KAFKA + "guards: {g: {type: http, url: http://a,\n"
        "  forward: {headers: [cookie, §X-Forwarded-Method]}}}\n",
        "guards.g.forward.headers[1] x-forwarded-method itself remove"),
    "end of tokens that are refused": (
        KAFKA + "guards: {g: {type: jwt, keys: http://a, requireExpiry: true, §maxLifetime: 1h}}\n",
        "maxLifetime requireExpiry remove"),
    "tokens good for no time": (
        KAFKA + "guards: {g: {type: jwt, keys: http://a, maxLifetime: §0s}}\n", "maxLifetime"),
    "attribute of nobody": (
        KAFKA + "guards: {g: {type: inline, users: {a: {token: t, attributes: {zone: a}}}}}\n"
        "routes:\n- when: [{path: /a}]\n  guarded: {g: []}\n"
        "  with: {topic: orders, filters: [{key: §\"${guarded['g'].attributes.zoen}\"}]}\n",
        "'zoen' 'zone'?"),
    "attribute of no answer": (
        KAFKA + "guards: {g: {type: http, url: http://a, attributes: [region]}}\nroutes:\n"
        "- when: [{path: /a}]\n  guarded: {g: []}\n"
        "  with: {topic: orders, filters: [{key: §\"${guarded['g'].attributes.regoin}\"}]}\n",
        "'regoin' 'region'?"),
    "a jwt guard without keys": (
        KAFKA + "guards: {§g: {type: jwt}}\n", "'keys' missing issuer URL"),
    "an issuer that cannot be asked for keys": (
        KAFKA + "guards: {§g: {type: jwt, issuer: shop}}\n", "'keys' missing issuer URL"),
    "certificates of nobody": (KAFKA + "guards: {§g: {type: x509}}\n", "listen.tls.ca"),
    "certificates of anybody": (
        KAFKA + "listen: {forwarded: true}\nguards: {g: {type: x509, §forwarded: true}}\n",
        "anybody listen.forwarded"),
    "field of no certificate": (
        KAFKA + "listen: {forwarded: [10.0.0.1]}\n"
        "guards: {g: {type: x509, forwarded: true, identity: §cn}}\n", "'cn' 'CN'?"),
    "mutual without authorities": (
        KAFKA + "listen: {tls: {certificate: pyproject.toml, key: pyproject.toml,\n"
        "  §mutual: required}}\n", "'ca'"),
    "users of the file before strangers": (
        KAFKA + "listen: {host: 0.0.0.0}\nguards: {§g: {type: inline, users: {a: {token: t}}}}\n",
        "development exposed: true"),
    "no users": (KAFKA + "guards: {g: {type: inline, users: §{}}}\n", "empty"),
    "user without a secret": (
        KAFKA + "guards: {g: {type: inline, users: {§a: {roles: [r]}}}}\n", "password token"),
    "user with a colon": (
        KAFKA + "guards: {g: {type: inline, users: {§'a:b': {token: t}}}}\n", "'a:b' ':'"),
    "role of no user": (
        KAFKA + "guards: {g: {type: inline, users: {a: {token: t, roles: [read]}}}}\nroutes:\n"
        "- when: [{path: /a}]\n  guarded: {g: [§raed]}\n  with: {topic: orders}\n",
        "'raed' 'read'?"),
    "keys that are no JWKS": (KAFKA + "guards: {g: {type: jwt, keys: §secret.jwks}}\n", "JWKS"),
    "credentials for every origin": (
        KAFKA + "listen: {access-control: {policy: cross-origin, allow: {credentials: §true}}}\n",
        "origins",
    ),
    # Substitution.
    "unset variable": ("name: §${env.NOBODY}\n" + KAFKA, "'NOBODY' not set ${env.NOBODY:default}"),
    "variable nearly set": ("name: §${env.SECRT}\n" + KAFKA, "'SECRET'?"),
    "shell's spelling": ("name: §${SECRET}\n" + KAFKA, "${env.SECRET}"),
    "unknown source": ("name: §${vault.a}\n" + KAFKA, "'${vault.a}' unknown env, file"),
    "malformed variable": ("name: §${env.}\n" + KAFKA, "malformed ${env.NAME}"),
    "missing secret file": ("name: §${file:nowhere}\n" + KAFKA, "'nowhere' exist"),
    "a folder as file": ("name: §${file:/}\n" + KAFKA, "exist"),
    "no file": ("name: §${file:}\n" + KAFKA, "malformed ${file:path}"),
    "variable that is no port": (KAFKA + "listen:\n  port: §${env.SECRET}\n", "${env.SECRET}"),
    "variable that is no duration": (TOPIC + "clockSkew: §${env.SECRET}\n", "${env.SECRET}"),
    "variable that is no choice": (TOPIC + "isolation: §${env.SECRET}\n", "${env.SECRET}"),
    "variable that is no server": ("kafka:\n  servers: [§'${env.SECRET}']\n", "${env.SECRET}"),
}  # fmt: skip

ENVIRON = {"SECRET": "hunter2", "EMPTY": ""}


def told(text: str, environ: dict[str, str] | None = None) -> list[str]:
    with pytest.raises(ConfigError) as raised:
        loads(text, name="orders.yaml", environ=ENVIRON if environ is None else environ)
    return list(raised.value.problems)


@pytest.mark.parametrize("case", CASES)
def test_a_wrong_file_is_told_where_and_what(case: str):
    """The marked place and every key word, and `what; what to do`, and no secret."""
    marked, words, *others = CASES[case]
    problems = told(marked.replace("§", ""))
    found = [p for p in problems if all(word in p for word in words.split())]
    assert found, problems
    if "§" in marked:
        before = marked[: marked.index("§")]
        line, column = before.count("\n") + 1, len(before) - before.rfind("\n")
        assert f"orders.yaml:{line}:{column}: " in found[0]
    assert ";" in found[0] and "hunter2" not in "".join(problems)
    assert others or len(problems) == 1, problems


def test_all_problems_are_told_at_once_in_the_order_of_the_file():
    problems = told(
        "name: orders\n"
        "kafka:\n"
        "  servers: [localhost]\n"
        "  topics:\n"
        "    - name: orders\n"
        "      partitonReadyTimeout: 5s\n"
        "      cache: {bytes: 64, age: 10 minutes}\n"
        "      reconnect: {initial: 2s, max: 1s}\n"
        "routes:\n"
        "  - when: [{path: '/e/{a}'}]\n"
        "    guarded: {jwt0: []}\n"
        "    with: {topic: order, filters: [{key: '${params.b}'}], hearbeat: 1s}\n"
        "name: again\n"
        "memory: ${env.NOBODY}\n"
    )
    places = [re.match(r"orders\.yaml:(\d+:\d+): ", problem).group(1) for problem in problems]
    assert places == [
        "3:13", "6:7", "7:22", "7:31", "8:37", "11:15", "12:19", "12:42", "12:59", "13:1", "14:9",
    ]  # fmt: skip


def test_a_failed_substitution_is_told_once_and_its_value_not_blamed():
    assert len(told("kafka: {servers: ['${env.A}'], topics: [{name: '${env.B}'}]}\n")) == 2


def test_nothing_follows_from_a_topic_whose_name_is_not_known():
    (problem,) = told(
        "kafka: {servers: [a:1], bootstrap: [a], topics: [{name: '${env.T}'}]}\n"
        "routes:\n"
        "  - {when: [{path: '/a/{x}'}], with: {topic: a}}\n"
        "  - {when: [{path: '/b/{x}'}], with: {topic: 'b${params.x}'}}\n"
    )
    assert "'T' is not set" in problem


def test_the_place_of_an_aliased_value_is_where_it_is_written():
    problems = told(
        "kafka:\n  servers: [a:1]\n  topics:\n"
        "    - {name: a, cache: &c {age: 10}}\n"
        "    - {name: b, cache: *c}\n"
    )
    assert [p.split(": ")[0] for p in problems] == ["orders.yaml:4:33"] * 2
    assert "topics[0]" in problems[0] and "topics[1]" in problems[1]


def test_enough_kinds_of_wrong_files_are_tried():
    assert len(CASES) >= 80
