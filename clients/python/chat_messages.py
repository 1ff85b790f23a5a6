"""Messages of chat.proto, written by generate.py: change that, not this."""

from __future__ import annotations

import dataclasses
import enum

from embar_session import protobuf


@dataclasses.dataclass
class Join(protobuf.Message):
    name: str = ""
    member: bytes = b""
    room: int = 0
    seen: int = 0

    FIELDS = (
        protobuf.Field(1, "name", "string"),
        protobuf.Field(2, "member", "bytes"),
        protobuf.Field(3, "room", "fixed64"),
        protobuf.Field(4, "seen", "uint64"),
    )


@dataclasses.dataclass
class Welcome(protobuf.Message):
    room: int = 0
    speaker: int = 0
    heard: int = 0
    after: int = 0

    FIELDS = (
        protobuf.Field(1, "room", "fixed64"),
        protobuf.Field(2, "speaker", "uint64"),
        protobuf.Field(3, "heard", "uint64"),
        protobuf.Field(4, "after", "uint64"),
    )


@dataclasses.dataclass
class Say(protobuf.Message):
    number: int = 0
    text: str = ""

    FIELDS = (
        protobuf.Field(1, "number", "uint64"),
        protobuf.Field(2, "text", "string"),
    )


@dataclasses.dataclass
class Said(protobuf.Message):
    line: int = 0
    speaker: int = 0
    number: int = 0
    name: str = ""
    text: str = ""

    FIELDS = (
        protobuf.Field(1, "line", "uint64"),
        protobuf.Field(2, "speaker", "uint64"),
        protobuf.Field(3, "number", "uint64"),
        protobuf.Field(4, "name", "string"),
        protobuf.Field(5, "text", "string"),
    )


@dataclasses.dataclass
class Present(protobuf.Message):
    names: list[str] = dataclasses.field(default_factory=lambda: [])

    FIELDS = (
        protobuf.Field(1, "names", "string", repeated=True),
    )


@dataclasses.dataclass
class Joined(protobuf.Message):
    name: str = ""

    FIELDS = (
        protobuf.Field(1, "name", "string"),
    )


@dataclasses.dataclass
class Left(protobuf.Message):
    name: str = ""
    why: str = ""

    FIELDS = (
        protobuf.Field(1, "name", "string"),
        protobuf.Field(2, "why", "string"),
    )


@dataclasses.dataclass
class RoomState(protobuf.Message):
    id: int = 0
    newest: int = 0
    lines: list[Said] = dataclasses.field(default_factory=lambda: [])
    speakers: int = 0
    members: list[MemberState] = dataclasses.field(default_factory=lambda: [])

    FIELDS = (
        protobuf.Field(1, "id", "fixed64"),
        protobuf.Field(2, "newest", "uint64"),
        protobuf.Field(3, "lines", lambda: Said, repeated=True),
        protobuf.Field(4, "speakers", "uint64"),
        protobuf.Field(5, "members", lambda: MemberState, repeated=True),
    )


@dataclasses.dataclass
class MemberState(protobuf.Message):
    id: bytes = b""
    name: str = ""
    speaker: int = 0
    heard: int = 0
    is_present: bool = False

    FIELDS = (
        protobuf.Field(1, "id", "bytes"),
        protobuf.Field(2, "name", "string"),
        protobuf.Field(3, "speaker", "uint64"),
        protobuf.Field(4, "heard", "uint64"),
        protobuf.Field(5, "is_present", "bool"),
    )
