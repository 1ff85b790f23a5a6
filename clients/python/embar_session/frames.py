"""Messages of session.proto, written by generate.py: change that, not this."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum

from embar_session.protobuf import Field, Message


class Reason(IntEnum):
    UNSPECIFIED = 0
    FINISHED = 1
    REFUSED = 2
    NOT_SESSION = 3
    SESSION_VERSION = 4
    PROTOCOL = 5
    UNKNOWN_FRAME = 6
    TOO_LARGE = 7
    BAD_FRAME = 8
    BAD_MESSAGE = 9
    HELLO_TIMEOUT = 10
    FRAME_TIMEOUT = 11
    IDLE = 12
    RESERVATION_HELD = 13
    TOO_MANY_SESSIONS = 14
    HANDLER_PANICKED = 15
    FULL = 16
    SHUTDOWN = 17
    DAMAGED = 18
    OUT_OF_MEMORY = 19


class StatusOutcome(IntEnum):
    REFUSED = 0
    GIVEN = 1


@dataclass
class Greeting(Message):
    magic: int = 0
    session_version: int = 0
    protocol: str = ""
    protocol_version: int = 0
    max_frame_bytes: int = 0
    max_body_bytes: int = 0
    idle_timeout_ms: int = 0
    greeting: bytes = b""

    FIELDS = (
        Field(1, "magic", "fixed32"),
        Field(2, "session_version", "uint32"),
        Field(3, "protocol", "string"),
        Field(4, "protocol_version", "uint32"),
        Field(5, "max_frame_bytes", "uint32"),
        Field(6, "max_body_bytes", "uint32"),
        Field(7, "idle_timeout_ms", "uint32"),
        Field(8, "greeting", "bytes"),
    )


@dataclass
class Ping(Message):
    token: int = 0

    FIELDS = (
        Field(1, "token", "fixed64"),
    )


@dataclass
class Goodbye(Message):
    text: str = ""

    FIELDS = (
        Field(1, "text", "string"),
    )


@dataclass
class StatusReply(Message):
    outcome: int = 0
    session: SessionFigures | None = None
    process: ProcessFigures | None = None

    FIELDS = (
        Field(1, "outcome", "enum"),
        Field(2, "session", lambda: SessionFigures, optional=True),
        Field(3, "process", lambda: ProcessFigures, optional=True),
    )


@dataclass
class SessionFigures(Message):
    messages_received: int = 0
    messages_sent: int = 0
    bytes_received: int = 0
    bytes_sent: int = 0
    queued_bytes: int = 0
    kept_bytes: int = 0
    round_trip_ns: int = 0
    age_ns: int = 0
    reads: int = 0
    writes: int = 0
    times_full: int = 0
    waited_for_room_ns: int = 0

    FIELDS = (
        Field(1, "messages_received", "uint64"),
        Field(2, "messages_sent", "uint64"),
        Field(3, "bytes_received", "uint64"),
        Field(4, "bytes_sent", "uint64"),
        Field(5, "queued_bytes", "uint64"),
        Field(6, "kept_bytes", "uint64"),
        Field(7, "round_trip_ns", "uint64"),
        Field(8, "age_ns", "uint64"),
        Field(9, "reads", "uint64"),
        Field(10, "writes", "uint64"),
        Field(11, "times_full", "uint64"),
        Field(12, "waited_for_room_ns", "uint64"),
    )


@dataclass
class ProcessFigures(Message):
    sessions: int = 0
    opened: int = 0
    closed: int = 0
    refused: int = 0
    idle_kicks: int = 0
    malformed: int = 0
    panics: int = 0
    messages_received: int = 0
    messages_sent: int = 0
    bytes_received: int = 0
    bytes_sent: int = 0
    arrivals: int = 0
    left_early: int = 0
    budget_used_bytes: int = 0
    budget_limit_bytes: int = 0

    FIELDS = (
        Field(1, "sessions", "uint64"),
        Field(2, "opened", "uint64"),
        Field(3, "closed", "uint64"),
        Field(4, "refused", "uint64"),
        Field(5, "idle_kicks", "uint64"),
        Field(6, "malformed", "uint64"),
        Field(7, "panics", "uint64"),
        Field(8, "messages_received", "uint64"),
        Field(9, "messages_sent", "uint64"),
        Field(10, "bytes_received", "uint64"),
        Field(11, "bytes_sent", "uint64"),
        Field(12, "arrivals", "uint64"),
        Field(13, "left_early", "uint64"),
        Field(14, "budget_used_bytes", "uint64"),
        Field(15, "budget_limit_bytes", "uint64"),
    )


@dataclass
class Close(Message):
    reason: int = 0
    code: int = 0
    text: str = ""

    FIELDS = (
        Field(1, "reason", "enum"),
        Field(2, "code", "uint32"),
        Field(3, "text", "string"),
    )
