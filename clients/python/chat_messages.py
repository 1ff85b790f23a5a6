"""Messages of chat.proto, written by generate.py: change that, not this."""

from __future__ import annotations

import dataclasses
import enum

from embar_session import protobuf


@dataclasses.dataclass
class Join(protobuf.Message):
    name: str = ""

    FIELDS = (
        protobuf.Field(1, "name", "string"),
    )


@dataclasses.dataclass
class Say(protobuf.Message):
    text: str = ""

    FIELDS = (
        protobuf.Field(1, "text", "string"),
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
class Said(protobuf.Message):
    name: str = ""
    text: str = ""

    FIELDS = (
        protobuf.Field(1, "name", "string"),
        protobuf.Field(2, "text", "string"),
    )
