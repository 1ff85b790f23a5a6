"""Protobuf messages as bytes and back, for the modules that generate.py writes.

What Protobuf asks of a reader holds here: unknown fields are skipped, of a field that comes twice the
later one counts, numbers of a repeated field may come packed or one by one, and the value of an enum
may be one that only a newer version knows.
"""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
# The wire type of each scalar, and how `struct` calls it.
FIXED = {
    "double": (FIXED64, "<d"),
    "fixed64": (FIXED64, "<Q"),
    "sfixed64": (FIXED64, "<q"),
    "float": (FIXED32, "<f"),
    "fixed32": (FIXED32, "<I"),
    "sfixed32": (FIXED32, "<i"),
}
BITS = {"int32": 32, "enum": 32, "sint32": 32, "uint32": 32, "int64": 64, "sint64": 64}


class DecodeError(ValueError):
    """Bytes that are no message of this kind."""


class Field(NamedTuple):
    """One field of a message."""

    number: int
    name: str
    # The name of a scalar type, "enum", or a function that returns the class of a message.
    kind: Any
    repeated: bool = False
    # Whether None stands for a field that is not there, so that its empty value is sent.
    optional: bool = False


def put_varint(out: bytearray, number: int) -> None:
    number &= (1 << 64) - 1
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)


def varint(data: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while at < len(data) and shift < 70:
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number & (1 << 64) - 1, at
        shift += 7
    raise DecodeError("a number has no end")


def take(data: bytes, at: int, count: int) -> tuple[bytes, int]:
    if count > len(data) - at:
        raise DecodeError("a field has no end")
    return data[at : at + count], at + count


def raw_value(data: bytes, at: int, wire: int) -> tuple[Any, int]:
    """The value of a field as it is on the wire: a number, or bytes."""
    if wire == VARINT:
        return varint(data, at)
    if wire == FIXED64:
        return take(data, at, 8)
    if wire == FIXED32:
        return take(data, at, 4)
    if wire == BYTES:
        length, at = varint(data, at)
        return take(data, at, length)
    raise DecodeError(f"wire type {wire} is not one of proto3")


def wire_of(kind: Any) -> int:
    if callable(kind) or kind in ("string", "bytes"):
        return BYTES
    return FIXED[kind][0] if kind in FIXED else VARINT


def of_raw(kind: Any, raw: Any) -> Any:
    if callable(kind):
        return kind().decode(raw)
    if kind == "bytes":
        return bytes(raw)
    if kind == "string":
        try:
            return bytes(raw).decode()
        except UnicodeDecodeError as error:
            raise DecodeError(f"a text is not UTF-8: {error}") from None
    if kind in FIXED:
        return struct.unpack(FIXED[kind][1], raw)[0]
    if kind == "bool":
        return raw != 0
    if kind in ("sint32", "sint64"):
        return raw >> 1 ^ -(raw & 1)
    bits = BITS.get(kind, 64)
    raw &= (1 << bits) - 1
    signed = kind in ("int32", "int64", "enum")
    return raw - (1 << bits) if signed and raw >> bits - 1 else raw


def put_value(out: bytearray, kind: Any, value: Any) -> None:
    if callable(kind) or kind == "string":
        value = value.encode()
    if wire_of(kind) == BYTES:
        put_varint(out, len(value))
        out += value
    elif kind in FIXED:
        out += struct.pack(FIXED[kind][1], value)
    elif kind in ("sint32", "sint64"):
        put_varint(out, value << 1 ^ value >> 63)
    else:
        put_varint(out, int(value))


class Message:
    """What all messages can do."""

    FIELDS: tuple[Field, ...] = ()

    def encode(self) -> bytes:
        """The message as bytes, fields in the order of their .proto file."""
        out = bytearray()
        for number, name, kind, repeated, optional in self.FIELDS:
            value = getattr(self, name)
            wire = wire_of(kind)
            if repeated and wire != BYTES and value:
                packed = bytearray()
                for one in value:
                    put_value(packed, kind, one)
                put_varint(out, number << 3 | BYTES)
                put_varint(out, len(packed))
                out += packed
                continue
            for one in value if repeated else [value]:
                if one is None or not (one or repeated or optional):
                    continue
                put_varint(out, number << 3 | wire)
                put_value(out, kind, one)
        return bytes(out)

    @classmethod
    def decode(cls, data: bytes):
        """The message that these bytes are; raises DecodeError."""
        message = cls()
        fields = {field.number: field for field in cls.FIELDS}
        data, at = bytes(data), 0
        while at < len(data):
            tag, at = varint(data, at)
            raw, at = raw_value(data, at, tag & 7)
            field = fields.get(tag >> 3)
            if tag >> 3 == 0:
                raise DecodeError("a field has the number 0")
            if field is None:
                continue
            wire = wire_of(field.kind)
            if field.repeated and wire != BYTES and tag & 7 == BYTES:
                inside = 0
                while inside < len(raw):
                    one, inside = raw_value(raw, inside, wire)
                    getattr(message, field.name).append(of_raw(field.kind, one))
            elif tag & 7 != wire:
                raise DecodeError(f"field {field.name} has wire type {tag & 7}")
            elif field.repeated:
                getattr(message, field.name).append(of_raw(field.kind, raw))
            else:
                setattr(message, field.name, of_raw(field.kind, raw))
        return message
