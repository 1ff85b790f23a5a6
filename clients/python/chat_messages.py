"""Messages of chat.proto, written by generate.py: change that, not this."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum

from embar_session.protobuf import Field, Message


@dataclass
class Join(Message):
    name: str = ""

    FIELDS = (
        Field(1, "name", "string"),
    )


@dataclass
class Say(Message):
    text: str = ""

    FIELDS = (
        Field(1, "text", "string"),
    )


@dataclass
class Present(Message):
    names: list[str] = field(default_factory=list)

    FIELDS = (
        Field(1, "names", "string", repeated=True),
    )


@dataclass
class Joined(Message):
    name: str = ""

    FIELDS = (
        Field(1, "name", "string"),
    )


@dataclass
class Left(Message):
    name: str = ""
    why: str = ""

    FIELDS = (
        Field(1, "name", "string"),
        Field(2, "why", "string"),
    )


@dataclass
class Said(Message):
    name: str = ""
    text: str = ""

    FIELDS = (
        Field(1, "name", "string"),
        Field(2, "text", "string"),
    )
