"""A client of `embar-session` servers, with nothing but the standard library.

    from embar_session import connect

    with connect("127.0.0.1:7000") as session:
        session.send(1, b"hello")
        print(session.receive())

docs/architecture/session-wire.md describes the bytes; core.py is that page as a program.
"""

from .aio import AsyncSession, connect as connect_async
from .client import Session, connect
from .core import Closed, Message, Settings
from .frames import Reason
from .protobuf import DecodeError

__all__ = [
    "AsyncSession",
    "Closed",
    "DecodeError",
    "Message",
    "Reason",
    "Session",
    "Settings",
    "connect",
    "connect_async",
]
