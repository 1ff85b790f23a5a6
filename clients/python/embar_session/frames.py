"""Messages of session.proto, written by generate.py: change that, not this."""

from __future__ import annotations

import dataclasses
import enum

from embar_session import protobuf


class Reason(enum.IntEnum):
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
    RATE_LIMITED = 24


class StatusOutcome(enum.IntEnum):
    REFUSED = 0
    GIVEN = 1


@dataclasses.dataclass
class Greeting(protobuf.Message):
    magic: int = 0
    session_version: int = 0
    protocol: str = ""
    protocol_version: int = 0
    max_frame_bytes: int = 0
    max_body_bytes: int = 0
    idle_timeout_ms: int = 0
    greeting: bytes = b""
    body_lanes: int = 0
    lane_window_bytes: int = 0

    FIELDS = (
        protobuf.Field(1, "magic", "fixed32"),
        protobuf.Field(2, "session_version", "uint32"),
        protobuf.Field(3, "protocol", "string"),
        protobuf.Field(4, "protocol_version", "uint32"),
        protobuf.Field(5, "max_frame_bytes", "uint32"),
        protobuf.Field(6, "max_body_bytes", "uint32"),
        protobuf.Field(7, "idle_timeout_ms", "uint32"),
        protobuf.Field(8, "greeting", "bytes"),
        protobuf.Field(14, "body_lanes", "uint32"),
        protobuf.Field(15, "lane_window_bytes", "uint32"),
    )


@dataclasses.dataclass
class Ping(protobuf.Message):
    token: int = 0

    FIELDS = (
        protobuf.Field(1, "token", "fixed64"),
    )


@dataclasses.dataclass
class Goodbye(protobuf.Message):
    text: str = ""
    redirect: str = ""
    delay_ms: int = 0

    FIELDS = (
        protobuf.Field(1, "text", "string"),
        protobuf.Field(2, "redirect", "string"),
        protobuf.Field(3, "delay_ms", "uint32"),
    )


@dataclasses.dataclass
class StatusReply(protobuf.Message):
    outcome: int = 0
    session: SessionFigures | None = None
    process: ProcessFigures | None = None

    FIELDS = (
        protobuf.Field(1, "outcome", "enum"),
        protobuf.Field(2, "session", lambda: SessionFigures, optional=True),
        protobuf.Field(3, "process", lambda: ProcessFigures, optional=True),
    )


@dataclasses.dataclass
class SessionFigures(protobuf.Message):
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
    missed_broadcasts: int = 0

    FIELDS = (
        protobuf.Field(1, "messages_received", "uint64"),
        protobuf.Field(2, "messages_sent", "uint64"),
        protobuf.Field(3, "bytes_received", "uint64"),
        protobuf.Field(4, "bytes_sent", "uint64"),
        protobuf.Field(5, "queued_bytes", "uint64"),
        protobuf.Field(6, "kept_bytes", "uint64"),
        protobuf.Field(7, "round_trip_ns", "uint64"),
        protobuf.Field(8, "age_ns", "uint64"),
        protobuf.Field(9, "reads", "uint64"),
        protobuf.Field(10, "writes", "uint64"),
        protobuf.Field(11, "times_full", "uint64"),
        protobuf.Field(12, "waited_for_room_ns", "uint64"),
        protobuf.Field(30, "missed_broadcasts", "uint64"),
    )


@dataclasses.dataclass
class ProcessFigures(protobuf.Message):
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
    listening: int = 0
    adopted: int = 0
    redirected: int = 0

    FIELDS = (
        protobuf.Field(1, "sessions", "uint64"),
        protobuf.Field(2, "opened", "uint64"),
        protobuf.Field(3, "closed", "uint64"),
        protobuf.Field(4, "refused", "uint64"),
        protobuf.Field(5, "idle_kicks", "uint64"),
        protobuf.Field(6, "malformed", "uint64"),
        protobuf.Field(7, "panics", "uint64"),
        protobuf.Field(8, "messages_received", "uint64"),
        protobuf.Field(9, "messages_sent", "uint64"),
        protobuf.Field(10, "bytes_received", "uint64"),
        protobuf.Field(11, "bytes_sent", "uint64"),
        protobuf.Field(12, "arrivals", "uint64"),
        protobuf.Field(13, "left_early", "uint64"),
        protobuf.Field(14, "budget_used_bytes", "uint64"),
        protobuf.Field(15, "budget_limit_bytes", "uint64"),
        protobuf.Field(20, "listening", "uint64"),
        protobuf.Field(21, "adopted", "uint64"),
        protobuf.Field(22, "redirected", "uint64"),
    )


@dataclasses.dataclass
class BodyBegin(protobuf.Message):
    lane: int = 0
    number: int = 0
    id: int = 0
    flags: int = 0
    length: int = 0
    head: bytes = b""

    FIELDS = (
        protobuf.Field(1, "lane", "uint32"),
        protobuf.Field(2, "number", "uint64"),
        protobuf.Field(3, "id", "uint32"),
        protobuf.Field(4, "flags", "uint32"),
        protobuf.Field(5, "length", "uint32"),
        protobuf.Field(6, "head", "bytes"),
    )


@dataclasses.dataclass
class BodyTaken(protobuf.Message):
    number: int = 0

    FIELDS = (
        protobuf.Field(1, "number", "uint64"),
    )


@dataclasses.dataclass
class BodyRefused(protobuf.Message):
    number: int = 0
    text: str = ""

    FIELDS = (
        protobuf.Field(1, "number", "uint64"),
        protobuf.Field(2, "text", "string"),
    )


@dataclasses.dataclass
class BodyCancelled(protobuf.Message):
    lane: int = 0

    FIELDS = (
        protobuf.Field(1, "lane", "uint32"),
    )


@dataclasses.dataclass
class Close(protobuf.Message):
    reason: int = 0
    code: int = 0
    text: str = ""

    FIELDS = (
        protobuf.Field(1, "reason", "enum"),
        protobuf.Field(2, "code", "uint32"),
        protobuf.Field(3, "text", "string"),
    )
