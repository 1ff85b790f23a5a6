"""One session of a client as a state machine: bytes and the time go in, bytes and events come out.

Nothing here knows a socket, a thread or a clock, so `client.py` and `aio.py` share it. Who drives a
core passes on what arrives (`received`, `ended`), sends what lies in `outgoing` (`take`), calls `tick`
when `next_tick` is due, and takes messages from `messages`.
"""

from __future__ import annotations

import struct
import unicodedata
from collections import deque
from dataclasses import dataclass

from .crc32c import crc32c
from .frames import Close, Goodbye, Greeting, Ping, Reason
from .protobuf import DecodeError, Message as Encoded

HEADER = struct.Struct("<IHH")  # length of what follows, id, flags
FIRST_RESERVED_ID = 0xFF00
HELLO, WELCOME, PING, PONG, GOODBYE, CLOSE, STATUS, STATUS_REPLY = range(0xFF00, 0xFF08)
CHECKED = 0x8000  # the frame ends with a checksum
BODY = 1  # of the protocol "plain": the frame has a head and a body
MAGIC = int.from_bytes(b"EMBS", "little")
SESSION_VERSION = 1
MAX_GREETING_BYTES = 2048
MAX_REASON_BYTES = 512
MAX_OWN_FRAME_BYTES = 3072


@dataclass
class Settings:
    """What a session speaks, accepts and waits for. Times are in seconds."""

    protocol: str = "plain"
    protocol_version: int = 1
    # Whether frames of this protocol end with a checksum.
    checked: bool = False
    # Longest message or head, and longest frame with a body (0: none may come).
    max_frame_bytes: int = 64 << 10
    max_body_bytes: int = 0
    # The session ends after so long a silence of the server, at least 1.
    idle_timeout: float = 60.0
    # A PING is sent when nothing else was for so long, or a third of the server's idle timeout.
    keep_alive: float = 10.0
    hello_timeout: float = 10.0
    # How long the server may take to close the connection after CLOSE.
    linger: float = 1.0
    # Most messages that wait for the program; then the server is not read.
    max_waiting: int = 64
    # Most bytes that wait to be sent; then `send` waits.
    max_queued_bytes: int = 256 << 10


@dataclass(frozen=True)
class Message:
    """A message of the server. With a body it has a head, too, and the payload is the body."""

    id: int
    payload: bytes
    head: bytes | None = None


class Closed(Exception):
    """How a session ended: by "local", "peer", or "network" if nobody said so."""

    def __init__(self, by: str, reason: int | None, code: int = 0, text: str = ""):
        self.by, self.reason, self.code, self.text = by, reason, code, text
        super().__init__(by, reason, code, text)

    @property
    def name(self) -> str:
        """The name of the reason. One that only a newer version knows is a refusal."""
        if self.reason is None:
            return "DISCONNECTED"
        try:
            name = Reason(self.reason).name
        except ValueError:
            return "REFUSED"
        return "REFUSED" if name == "UNSPECIFIED" else name

    def __str__(self) -> str:
        who = {"local": "closed here", "peer": "closed by the peer", "network": "lost"}[self.by]
        return f"{who}: {self.name}" + (f" ({self.text})" if self.text else "")


class _Fault(Exception):
    def __init__(self, reason: Reason, text: str = ""):
        self.reason, self.text = reason, text


class ClientCore:
    """A session on the side that connects."""

    def __init__(self, settings: Settings, greeting: bytes, now: float):
        if len(greeting) > MAX_GREETING_BYTES:
            text = f"a greeting has at most {MAX_GREETING_BYTES} bytes: say it in a message"
            raise ValueError(text)
        if settings.keep_alive <= 0:
            raise ValueError("keep_alive is the pause between two PINGs: it is above 0")
        self.settings = settings
        self.outgoing = bytearray()
        self.messages: deque[Message] = deque()
        # What the server said with GOODBYE: it is about to end and asks for nothing new.
        self.leaving: str | None = None
        # Where it asked to connect instead, and after how many seconds.
        self.redirect: tuple[str, float] | None = None
        # The server's greeting, once the session is open.
        self.greeting: bytes | None = None
        # How it ended; nothing more comes then.
        self.closed: Closed | None = None
        # Nothing more is to be sent once `outgoing` is empty.
        self.said_close = False
        self.may_send_bytes = self.may_send_body_bytes = 0
        self.round_trip: float | None = None
        self._incoming = bytearray()
        self._began = self._heard_at = self._sent_at = now
        self._ping_after = settings.keep_alive
        self._ping: tuple[int, float] | None = None
        self._pings = 0
        self._closed_at: float | None = None
        self._idle_timeout = max(settings.idle_timeout, 1.0)
        hello = Greeting(
            magic=MAGIC,
            session_version=SESSION_VERSION,
            protocol=settings.protocol,
            protocol_version=settings.protocol_version,
            max_frame_bytes=settings.max_frame_bytes,
            max_body_bytes=settings.max_body_bytes,
            idle_timeout_ms=int(self._idle_timeout * 1000),
            greeting=greeting,
        )
        self._put(HELLO, hello.encode(), now)

    # What goes out.

    def _put(self, id: int, payload: bytes, now: float, flags: int = 0) -> None:
        self._sent_at = now
        checked = self.settings.checked and not flags & BODY
        length = len(payload) + (4 if checked else 0)
        frame = HEADER.pack(length, id, flags | (CHECKED if checked else 0)) + payload
        if checked:
            frame += crc32c(frame).to_bytes(4, "little")
        self.outgoing += frame

    def _may_send(self, id: int, size: int, limit: int) -> None:
        if self.closed:
            raise Closed(*self.closed.args)
        if self.greeting is None:
            raise RuntimeError("the session is not open yet")
        if not 0 <= id < FIRST_RESERVED_ID:
            raise ValueError(f"ids of messages are below {FIRST_RESERVED_ID:#x}, not {id:#x}")
        if size > limit:
            raise ValueError(f"{size} bytes, and the server accepts {limit}: send smaller ones")

    def send(self, id: int, message: bytes | Encoded, now: float) -> None:
        """Queues a message."""
        payload = message.encode() if isinstance(message, Encoded) else bytes(message)
        self._may_send(id, len(payload), self.may_send_bytes)
        self._put(id, payload, now)

    def send_body(self, id: int, head: bytes, body: bytes, now: float) -> None:
        """Queues a frame of the protocol "plain" with a head and a body."""
        if self.settings.protocol != "plain":
            raise ValueError("only the protocol plain has frames with bodies")
        self._may_send(id, 4 + len(head), self.may_send_bytes)
        self._may_send(id, 4 + len(head) + len(body), self.may_send_body_bytes)
        self._put(id, len(head).to_bytes(4, "little") + head + body, now, flags=BODY)

    def take(self, most: int, now: float) -> bytes:
        """Up to so many bytes of what is to be sent. The connection takes them, so it goes on."""
        taken = bytes(self.outgoing[:most])
        del self.outgoing[:most]
        if self._closed_at is not None:
            self._closed_at = now
        return taken

    def goodbye(self, text: str, now: float) -> None:
        """Tells the server that this end is about to close."""
        if self.greeting is not None and not self.closed:
            self._put(GOODBYE, Goodbye(text=_cut(text)).encode(), now)

    def close(self, now: float, reason: int = Reason.FINISHED, text: str = "") -> None:
        """Ends the session: what is queued is sent, then CLOSE, and nothing more is heard."""
        if self.closed:
            return
        self.closed = Closed("local", reason, 0, text)
        self._put(CLOSE, Close(reason=reason, text=_cut(text)).encode(), now)
        self.said_close = True
        self._closed_at = now
        self._incoming.clear()

    def cut(self) -> None:
        """The connection is no longer wanted: there is nothing left to send."""
        self.closed = self.closed or Closed("local", Reason.FINISHED)
        self.outgoing.clear()

    # What comes in.

    def received(self, data: bytes, now: float) -> None:
        """Bytes that came from the server."""
        self._heard_at = now
        if self.closed:
            return  # what comes after CLOSE is read, so that the server can finish, and forgotten
        self._incoming += data
        try:
            while not self.closed and self._frame(now):
                pass
        except _Fault as fault:
            self.close(now, fault.reason, fault.text)
        except DecodeError as error:
            reason = Reason.BAD_FRAME if self.greeting is not None else Reason.NOT_SESSION
            self.close(now, reason, str(error))

    def ended(self) -> None:
        """The server sends no more, or the connection is gone."""
        if not self.closed:
            text = "inside of a frame" if self._incoming else ""
            self.closed = Closed("network", None, 0, text)
        self.outgoing.clear()

    def _frame(self, now: float) -> bool:
        """Takes one frame; False if it is not there yet."""
        if len(self._incoming) < HEADER.size:
            return False
        length, id, flags = HEADER.unpack_from(self._incoming)
        end = HEADER.size + length
        checked = bool(flags & CHECKED)
        # Before it is known what the server speaks, a frame may come with or without a checksum.
        greeting = self.greeting is None
        has_sum = checked and (self.settings.checked or greeting)
        plain_flags = flags & ~CHECKED if has_sum else flags
        content = length - (4 if has_sum else 0)
        if greeting and id not in (WELCOME, CLOSE):
            raise _Fault(Reason.NOT_SESSION)
        try:
            has_body = self._check(id, plain_flags, content, length)
        except _Fault as fault:
            # What does not begin with a good WELCOME is no session.
            raise _Fault(Reason.NOT_SESSION) if greeting else fault from None
        if self.settings.checked and not (has_body or has_sum or greeting):
            raise _Fault(Reason.DAMAGED, f"a frame with id {id:#06x} has no checksum")
        if len(self._incoming) < end:
            return False
        frame = bytes(self._incoming[:end])
        del self._incoming[:end]
        if has_sum and crc32c(frame[:-4]) != int.from_bytes(frame[-4:], "little"):
            raise _Fault(Reason.DAMAGED, f"a frame with id {id:#06x} was damaged on its way")
        payload = frame[HEADER.size : HEADER.size + content]
        if id >= FIRST_RESERVED_ID:
            self._own(id, payload, now)
            if id == WELCOME and has_sum != self.settings.checked:
                raise _Fault(Reason.DAMAGED, "only one of both ends has checksums")
        elif has_body:
            head_end = 4 + int.from_bytes(payload[:4], "little")
            if head_end > len(payload):
                raise _Fault(Reason.BAD_FRAME, f"a head of {head_end - 4} bytes does not fit")
            self.messages.append(Message(id, payload[head_end:], payload[4:head_end]))
        else:
            self.messages.append(Message(id, payload))
        return True

    def _check(self, id: int, flags: int, content: int, length: int) -> bool:
        """Whether the frame has a body; raises if no such frame may come."""
        settings = self.settings
        if id >= FIRST_RESERVED_ID:
            if id > STATUS_REPLY:
                raise _Fault(Reason.UNKNOWN_FRAME, f"an unknown reserved id, {id:#06x}")
            own = settings.max_frame_bytes if id == STATUS_REPLY else MAX_OWN_FRAME_BYTES
            limit, has_body = own, False
            known = flags == 0
        else:
            has_body = settings.protocol == "plain" and flags == BODY
            limit = settings.max_body_bytes if has_body else settings.max_frame_bytes
            known = flags == 0 or has_body
        if not known:
            raise _Fault(Reason.BAD_FRAME, f"flags {flags:#06x} on id {id:#06x} are unknown")
        if (length if has_body else content) > limit:
            raise _Fault(Reason.TOO_LARGE, f"{length} bytes with id {id:#06x}, the limit is {limit}")
        if content < 0 or (has_body and length < 4):
            raise _Fault(Reason.BAD_FRAME, f"a frame with id {id:#06x} is too short")
        return has_body

    def _own(self, id: int, payload: bytes, now: float) -> None:
        """A frame of the session layer."""
        if id == CLOSE:
            close = Close.decode(payload)
            self.closed = Closed("peer", close.reason, close.code, _cut(close.text))
            self.outgoing.clear()  # the server reads no more
        elif id == WELCOME:
            self._welcome(Greeting.decode(payload))
        elif id == HELLO:
            raise _Fault(Reason.BAD_FRAME, "HELLO from the side that accepts")
        elif id == PING:
            # Answers to a server that takes none do not pile up: only a measurement is lost.
            token = Ping.decode(payload).token
            if len(self.outgoing) < self.settings.max_queued_bytes:
                self._put(PONG, Ping(token=token).encode(), now)
        elif id == PONG:
            if self._ping and Ping.decode(payload).token == self._ping[0]:
                self.round_trip = now - self._ping[1]
                self._ping = None
        elif id == GOODBYE:
            goodbye = Goodbye.decode(payload)
            self.leaving = goodbye.text
            if to := goodbye.redirect:
                if len(to.encode()) > 255 or any(unicodedata.category(c) == "Cc" for c in to):
                    raise _Fault(Reason.BAD_FRAME, "a redirect that is too long or has control characters")
                self.redirect = (to, goodbye.delay_ms / 1000)
        # STATUS: this end tells no figures, so it does not answer.

    def _welcome(self, welcome: Greeting) -> None:
        if self.greeting is not None:
            raise _Fault(Reason.BAD_FRAME, "a second WELCOME")
        if welcome.magic != MAGIC:
            raise _Fault(Reason.NOT_SESSION)
        if welcome.session_version != SESSION_VERSION:
            text = f"this end has version {SESSION_VERSION}, the server {welcome.session_version}"
            raise _Fault(Reason.SESSION_VERSION, text)
        spoken = (self.settings.protocol, self.settings.protocol_version)
        if (welcome.protocol, welcome.protocol_version) != spoken:
            raise _Fault(Reason.PROTOCOL, f"this end speaks {spoken[0]} version {spoken[1]}")
        if len(welcome.greeting) > MAX_GREETING_BYTES:
            raise _Fault(Reason.BAD_FRAME, "the greeting is too long")
        self.greeting = welcome.greeting
        self.may_send_bytes = welcome.max_frame_bytes
        self.may_send_body_bytes = welcome.max_body_bytes
        if welcome.idle_timeout_ms:
            patience = max(welcome.idle_timeout_ms / 1000, 1.0)
            self._ping_after = min(self._ping_after, patience / 3)

    # What is due.

    def tick(self, now: float, reads: bool = True) -> None:
        """Acts on what is due. `reads`: whether this end takes what comes, so that silence is the
        server's."""
        if self.closed:
            if self._closed_at is not None and now >= self._closed_at + self.settings.linger:
                self.cut()
            return
        if not reads:
            self._heard_at = now
        if self.greeting is None:
            if now >= self._began + self.settings.hello_timeout:
                self.close(now, Reason.HELLO_TIMEOUT)
        elif now >= self._heard_at + self._idle_timeout:
            self.close(now, Reason.IDLE)
        elif now >= self._sent_at + self._ping_after:
            self._sent_at = now
            if self.outgoing:
                return  # what still waits to be sent is a sign of life itself
            if self._ping is None:
                self._pings += 1
                self._ping = (self._pings, now)
            self._put(PING, Ping(token=self._ping[0]).encode(), now)

    def next_tick(self) -> float | None:
        """When `tick` is due."""
        if self.closed:
            return None if self._closed_at is None else self._closed_at + self.settings.linger
        if self.greeting is None:
            return self._began + self.settings.hello_timeout
        return min(self._heard_at + self._idle_timeout, self._sent_at + self._ping_after)


def _cut(text: str) -> str:
    return text.encode()[:MAX_REASON_BYTES].decode(errors="ignore")
