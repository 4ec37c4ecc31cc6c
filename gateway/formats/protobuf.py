"""Convert between Protobuf and its JSON mapping, by the text of a .proto file and its imports.

The payload begins with the indexes that lead to the type of the message in the file, as zigzag
varints preceded by their number. A single zero means the first type of the file, and is always
written here. The indexes count the messages that are in the text, as Confluent's Java library does,
and so not those that the compiler adds for `map` fields. Confluent's serializers register a `map`
field with an explicit message that has `option map_entry = true`, which protoc refuses to read;
here it becomes a `map` again, and is counted because it is in the text.

Every file may import the types of google/protobuf, google/type and confluent, as with a schema
registry. Fields without presence are shown also if they have their default, as in Confluent's REST
proxy. Names are shown in lowerCamelCase, and those of the file are accepted, too. 64-bit integers
are text. (protobuf.dev, ProtoJSON; Confluent's wire format.)

Files are compiled by protoc, in a temporary directory, and cannot refer to files outside of it.
Large ones are compiled in another process, for which callers wait in a thread. Compiling takes 2
ms; a message of 8 fields is decoded in 26 us and encoded in 70 us.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from struct import Struct
from tempfile import TemporaryDirectory
from typing import Any

import orjson
from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory
from google.protobuf.message import DecodeError, EncodeError, Message

from gateway.errors import FormatError

from .avro.types import float_to_json
from .budget import Budget, create_json_budget
from .plain import describe_json_type

_MAX_TYPE_DEPTH = 64  # types nested in types, by the number of indexes
_MAIN_FILE = "schema.proto"
_FIRST_MESSAGE_INDEX = b"\x00"
_SYNTAX = re.compile(r"^[^\S\n]*(syntax|edition)\s*=", re.MULTILINE)
# As Java's and .NET's serializers register `optional` of proto3.
_OPTIONAL_ONEOF = re.compile(r"\boneof\s+_\w+\s*\{\s*(optional\s[^{};]+;)\s*\}")
_MAP_ENTRY = re.compile(r"\boption\s+map_entry\s*=\s*true\s*;")
# Stands for `map_entry` during compilation: an option that protoc accepts, and that nobody uses.
_MAP_ENTRY_MARK = "option no_standard_descriptor_accessor = true;"
# protoc holds the GIL. It compiles so much in 0.04 s, but its time grows with the square of the
# messages of a file, and of the ranges of `reserved` and `extensions`.
_MAX_IN_PROCESS_CHARS = 32 << 10
_PROTOC_TIMEOUT_S = 10.0
_MAX_ERROR_CHARS = 1000
_FILES_WITH_OWN_JSON = frozenset(
    f"google/protobuf/{name}.proto"
    for name in ("any", "duration", "field_mask", "struct", "timestamp", "wrappers")
)
_MEMBER_COST = 32  # of a member in the budget of JSON: it takes time and memory besides its name
_FLOAT = Struct("<f")
_BUNDLED_DIRECTORY = Path(__file__).with_name("proto")


class ProtobufCodec:
    """The codec of one .proto file; `Codecs` creates and keeps one per schema id."""

    def __init__(self, text: str, references: Mapping[str, str]) -> None:
        """Compile a file with its imports by path; raises FormatError if it cannot be used."""
        # A name that no import has.
        main = next(
            name
            for name in (_MAIN_FILE, f"_{_MAIN_FILE}", f"__{_MAIN_FILE}")
            if name not in references
        )
        try:
            files = compile_files(main, {**references, main: text})
            self._pool = descriptor_pool.DescriptorPool()
            # Full names of the messages that the compiler added for `map` fields. Those of the text
            # do not have `map_entry` yet: see `_restore_map_entries`.
            self._map_entry_names = frozenset(
                name
                for name, message in _iter_messages(files.file[-1])
                if message.options.map_entry
            )
            for file in files.file:
                _restore_map_entries(file)
                self._pool.Add(file)
            self._types = [message.name for message in files.file[-1].message_type]
            self._file: Any = self._pool.FindFileByName(main)
        except (ValueError, TypeError, KeyError, OSError) as exc:
            reason = " ".join(str(exc).split())
            raise FormatError(f"the Protobuf schema cannot be used: {reason}; correct it") from None
        if not self._types:
            raise FormatError("the Protobuf schema has no message; add one")
        self._classes: dict[tuple[int, ...], type[Message]] = {}
        # Of the fields that are always shown, by the full name of their message, with their cost.
        self._defaults: dict[str, tuple[Sequence[tuple[str, Any]], int]] = {}

    def encode(self, value: Any) -> bytes:
        message = self._get_message_class((0,))()
        # Well-known types such as Timestamp or Int64Value are not objects in JSON.
        if not isinstance(value, dict) and message.DESCRIPTOR.file.package != "google.protobuf":
            raise FormatError(
                f"a message is an object, not {describe_json_type(value)}; correct it"
            )
        try:
            json_format.ParseDict(value, message, descriptor_pool=self._pool)
            return _FIRST_MESSAGE_INDEX + message.SerializeToString(deterministic=True)
        except (json_format.ParseError, EncodeError, ValueError, TypeError, AttributeError) as exc:
            reason = " ".join(str(exc).split())
            raise FormatError(f"the value does not fit its Protobuf schema: {reason}") from None
        except KeyError as exc:  # an `Any` of a type such as Int64Value, whose JSON is no object
            raise FormatError(f"a member {exc} is missing beside '@type'; add it") from None
        except RecursionError:
            raise FormatError("the value is nested too deep; flatten it") from None

    def decode(self, data: bytes) -> Any:
        try:
            path, pos = read_indexes(data)
            message = self._get_message_class(path)()
            message.ParseFromString(data[pos:])
            return self._to_json(message, create_json_budget(len(data)))
        except (DecodeError, ValueError, TypeError, json_format.Error, RecursionError) as exc:
            raise FormatError(f"the bytes are not of their Protobuf schema: {exc}") from None

    def _to_json(self, message: Any, budget: Budget) -> Any:
        """Return a message as JSON, and parts of it that have no JSON as their fields.

        These are an `Any` of an unknown type, and a Timestamp or a Duration that is out of range.
        """
        kind = message.DESCRIPTOR
        if kind.file.name in _FILES_WITH_OWN_JSON:
            budget.spend(2 * _MEMBER_COST)
            match kind.name:
                case "Any":
                    return self._any_to_json(message, budget)
                case "Timestamp" | "Duration":
                    try:
                        return message.ToJsonString()
                    except ValueError:
                        return {"seconds": str(message.seconds), "nanos": message.nanos}
            return json_format.MessageToDict(message)
        defaults, size = self._get_defaults(kind)
        budget.spend(size)
        shown: dict[str, Any] = {}
        for field, content in message.ListFields():
            name = f"[{field.full_name}]" if field.is_extension else field.json_name
            budget.spend(len(name) + _MEMBER_COST)
            if not field.is_repeated:
                shown[name] = self._part_to_json(field, content, budget)
            elif not _is_map(field):
                shown[name] = [self._part_to_json(field, part, budget) for part in content]
            else:
                parts = field.message_type.fields_by_name
                entries = shown[name] = {}
                for key, part in content.items():
                    key = self._part_to_json(parts["key"], key, budget)
                    label = key if isinstance(key, str) else json.dumps(key)
                    entries[label] = self._part_to_json(parts["value"], part, budget)
        for name, default in defaults:
            if name not in shown:
                shown[name] = default or type(default)()  # a list or an object of its own
        return shown

    def _any_to_json(self, message: Any, budget: Budget) -> Any:
        if not message.type_url and not message.value:
            return {}
        try:
            descriptor = self._pool.FindMessageTypeByName(message.TypeName())
            content = message_factory.GetMessageClass(descriptor).FromString(message.value)
        except (KeyError, DecodeError):
            return {"@type": message.type_url, "value": b64encode(message.value).decode()}
        shown = self._to_json(content, budget)
        if descriptor.file.name in _FILES_WITH_OWN_JSON:
            shown = {"value": shown}
        return {"@type": message.type_url} | shown

    def _part_to_json(self, field: Any, value: Any, budget: Budget) -> Any:
        """Return a single value of a field as JSON."""
        match field.cpp_type:
            case field.CPPTYPE_MESSAGE:
                return self._to_json(value, budget)
            case field.CPPTYPE_ENUM:
                if field.enum_type.full_name == "google.protobuf.NullValue":
                    return None
                known = field.enum_type.values_by_number.get(value)
                if known is None:
                    return value
                budget.spend(len(known.name))
                return known.name
            case field.CPPTYPE_STRING if field.type == field.TYPE_BYTES:
                return b64encode(value).decode()
            case field.CPPTYPE_STRING if isinstance(value, bytes):  # unchecked before proto3
                raise ValueError(f"the text in '{field.full_name}' is not UTF-8")
            case field.CPPTYPE_INT64 | field.CPPTYPE_UINT64:
                return str(value)
            case field.CPPTYPE_DOUBLE:
                return float_to_json(value)
            case field.CPPTYPE_FLOAT:
                return float_to_json(_shorten_float(value))
        return value

    def _get_defaults(self, kind: Any) -> tuple[Sequence[tuple[str, Any]], int]:
        """Return the fields that are always shown, with their defaults, and what they cost."""
        known = self._defaults.get(kind.full_name)
        if known is None:
            free = create_json_budget(0)
            defaults = [
                (
                    field.json_name,
                    {}
                    if _is_map(field)
                    else []
                    if field.is_repeated
                    else self._part_to_json(field, field.default_value, free),
                )
                for field in kind.fields
                if not field.has_presence
            ]
            size = sum(len(orjson.dumps(default)) + _MEMBER_COST for default in defaults)
            known = self._defaults[kind.full_name] = defaults, size
        return known

    def decode_text(self, data: bytes) -> bytes:
        value = self.decode(data)
        try:
            return orjson.dumps(value)
        except orjson.JSONEncodeError as exc:  # deeper than 254 levels
            raise FormatError(f"the value cannot be written as JSON: {exc}") from None

    def _get_message_class(self, path: tuple[int, ...]) -> type[Message]:
        message_class = self._classes.get(path)
        if message_class is None:
            message_class = self._classes[path] = message_factory.GetMessageClass(
                self.find_descriptor(path)
            )
        return message_class

    def find_descriptor(self, path: Sequence[int]) -> Any:
        """Return the message at these indexes, outermost first; raises ValueError."""
        try:
            descriptor = self._file.message_types_by_name[self._types[path[0]]]
            for index in path[1:]:
                nested = [
                    nested_type
                    for nested_type in descriptor.nested_types
                    if nested_type.full_name not in self._map_entry_names
                ]
                descriptor = nested[index]
        except IndexError:
            raise ValueError(f"it has no message at {list(path)}") from None
        return descriptor


def _is_map(field: Any) -> bool:
    kind = field.message_type
    return kind is not None and bool(kind.GetOptions().map_entry)


def _shorten_float(value: float) -> float:
    """Return a float of four bytes with as few digits as tell it from the others."""
    candidates = (float(f"{value:.{digits}g}") for digits in range(6, 10))
    return next((c for c in candidates if _FLOAT.unpack(_FLOAT.pack(c))[0] == value), value)


def read_indexes(data: bytes) -> tuple[tuple[int, ...], int]:
    """Return the indexes before a message, and its position; raises ValueError."""
    count, pos = _read_varint(data, 0)
    if count == 0:
        return (0,), pos
    if not 0 < count <= _MAX_TYPE_DEPTH:
        raise ValueError(f"{count} indexes of a message")
    path = []
    for _ in range(count):
        index, pos = _read_varint(data, pos)
        if index < 0:
            raise ValueError(f"{index} as index of a message")
        path.append(index)
    return tuple(path), pos


def _read_varint(data: bytes, pos: int) -> tuple[int, int]:
    number = 0
    for shift in range(0, 35, 7):
        if pos >= len(data):
            raise ValueError("the indexes of the message are cut")
        byte = data[pos]
        pos += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (number >> 1) ^ -(number & 1), pos
    raise ValueError("an index of the message is too long")


def _iter_messages(
    file: descriptor_pb2.FileDescriptorProto,
) -> Iterator[tuple[str, descriptor_pb2.DescriptorProto]]:
    pending = [(file.package, message) for message in file.message_type]
    while pending:
        scope, message = pending.pop()
        name = f"{scope}.{message.name}" if scope else message.name
        yield name, message
        pending += [(name, nested) for nested in message.nested_type]


def _restore_map_entries(file: descriptor_pb2.FileDescriptorProto) -> None:
    """Set `map_entry` again on the messages whose text had the option."""
    for _, message in _iter_messages(file):
        if message.options.no_standard_descriptor_accessor:
            message.options.ClearField("no_standard_descriptor_accessor")
            message.options.map_entry = True


def compile_files(main: str, files: Mapping[str, str]) -> descriptor_pb2.FileDescriptorSet:
    """Compile a file and its imports, by path, into descriptors with the main file last.

    Raises:
        ValueError: A file cannot be compiled, or has a path that is not allowed.
        OSError: The temporary directory cannot be written.
    """
    import google.type  # takes 5 ms with protoc, so only where protobuf is used
    import grpc_tools
    from grpc_tools import _protoc_compiler as protoc

    bundled_dirs = [Path(str(grpc_tools.__file__)).with_name("_proto"), _BUNDLED_DIRECTORY]
    with TemporaryDirectory(prefix="gateway-proto-") as name:
        directory = Path(name)
        (directory / "google" / "type").mkdir(parents=True)
        if any("google/type/" in text for text in files.values()):
            for source in Path(next(iter(google.type.__path__))).glob("*.proto"):
                shutil.copy(source, directory / "google" / "type")
        for path, text in files.items():
            relative = PurePosixPath(path)
            # The path comes from the registry and must not lead out of the directory.
            if relative.is_absolute() or ".." in relative.parts or "\0" in path:
                raise ValueError(f"'{path}' is no path of an import")
            if any((parent / relative).is_file() for parent in [*bundled_dirs, directory]):
                continue  # a bundled file takes precedence over the registry's copy
            (directory / relative).parent.mkdir(parents=True, exist_ok=True)
            # proto2 is the default, but protoc logs a warning unless the file says so.
            syntax = "" if _SYNTAX.search(text) else 'syntax = "proto2";'
            text = _OPTIONAL_ONEOF.sub(r"\1", _MAP_ENTRY.sub(_MAP_ENTRY_MARK, text))
            (directory / relative).write_text(syntax + text, "utf-8")
        includes = [str(parent).encode() for parent in (directory, *bundled_dirs)]
        output = directory / "made.bin"
        arguments = [*(b"-I" + include for include in includes), b"--include_imports"]
        arguments += [b"--descriptor_set_out=" + str(output).encode(), main.encode()]
        if sum(map(len, files.values())) > _MAX_IN_PROCESS_CHARS:
            _run_protoc_apart(arguments, directory)
        else:
            try:
                # Raises what is wrong with the files, which `run_main` would only print.
                protoc.get_protos(main.encode(), includes)
            except Exception as exc:  # ProtocErrors, which derives from Exception alone
                raise ValueError(str(exc)) from None
            if protoc.run_main([b"protoc", *arguments]) != 0:
                raise ValueError("protoc cannot compile it")
        return descriptor_pb2.FileDescriptorSet.FromString(output.read_bytes())


def _run_protoc_apart(arguments: Sequence[bytes], directory: Path) -> None:
    """Run protoc in a process of its own, as it holds the GIL; raises ValueError."""
    command = [sys.executable.encode(), b"-m", b"grpc_tools.protoc", *arguments]
    try:
        done = subprocess.run(command, capture_output=True, timeout=_PROTOC_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        raise ValueError(f"it takes more than {_PROTOC_TIMEOUT_S:g} s to compile") from None
    if done.returncode != 0:
        problem = done.stderr.decode(errors="replace").replace(f"{directory}/", "")
        raise ValueError(problem[:_MAX_ERROR_CHARS])
