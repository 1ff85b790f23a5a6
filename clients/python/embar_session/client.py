"""Sessions for programs without asyncio: one thread in the background drives all of them, so that
the server hears of this end while the program does something else."""

from __future__ import annotations

import asyncio
import ssl
import threading

from . import aio
from .core import Closed, Message, Settings
from .frames import Reason
from .protobuf import Message as Encoded

_lock = threading.Lock()
_loop: asyncio.AbstractEventLoop | None = None


def _background() -> asyncio.AbstractEventLoop:
    global _loop
    with _lock:
        if _loop is None:
            _loop = asyncio.new_event_loop()
            threading.Thread(target=_loop.run_forever, name="sessions", daemon=True).start()
        return _loop


def _wait(work):
    future = asyncio.run_coroutine_threadsafe(work, _background())
    try:
        return future.result()
    except BaseException:
        future.cancel()  # of a program that was interrupted
        raise


def connect(
    address: str,
    greeting: bytes = b"",
    settings: Settings | None = None,
    tls: ssl.SSLContext | None = None,
) -> Session:
    """Connects to `host:port` or `unix:/path`, and waits until the session is open. With `tls`, for
    example `ssl.create_default_context()`, it is encrypted.

    Raises `Closed` if the server refuses, and `OSError` if there is none.
    """
    return Session(_wait(aio.connect(address, greeting, settings, tls)))


class Session:
    """An open session. Any thread may use it."""

    def __init__(self, session: aio.AsyncSession):
        self._session = session

    @property
    def greeting(self) -> bytes:
        """What the server's program said in the handshake."""
        return self._session.greeting

    @property
    def leaving(self) -> str | None:
        """What the server said if it is about to end: ask for nothing new."""
        return self._session.leaving

    @property
    def redirect(self) -> tuple[str, float] | None:
        """Where the server asked to connect instead, and in how many seconds. It may say anything: check it."""
        return self._session.redirect

    @property
    def closed(self) -> Closed | None:
        """How it ended, if it has."""
        return self._session.closed

    @property
    def round_trip(self) -> float | None:
        """Seconds that the latest PING took to be answered."""
        return self._session.round_trip

    def send(self, id: int, message: bytes | Encoded, timeout: float | None = None) -> None:
        """Sends a message. Waits while the server does not read; raises `TimeoutError` when that
        takes too long, and `Closed` when the session has ended."""
        _wait(self._session.send(id, message, timeout))

    def send_body(self, id: int, head: bytes, body: bytes, timeout: float | None = None) -> None:
        """As `send`, for a message with a head and a body, of the protocol "plain"."""
        _wait(self._session.send_body(id, head, body, timeout))

    def receive(self, timeout: float | None = None) -> Message:
        """The next message. Raises `Closed` behind the last one."""
        return _wait(self._session.receive(timeout))

    def goodbye(self, text: str = "") -> None:
        """Tells the server that this end is about to close."""
        _wait(self._session.goodbye(text))

    def close(self, reason: int = Reason.FINISHED, text: str = "") -> None:
        """Ends the session in good order: what was sent arrives, and nothing more is heard."""
        _wait(self._session.close(reason, text))

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __iter__(self):
        try:
            while True:
                yield self.receive()
        except Closed as why:
            if why.by != "local" and why.reason != Reason.FINISHED:
                raise
