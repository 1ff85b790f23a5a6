#!/usr/bin/env python3
"""What the client is tested with: crates/session/tests/python.rs runs each of these against a real
server, or against one that breaks the rules.

    python3 scenarios.py SCENARIO [ADDRESS]
"""

import asyncio
import ssl
import sys
import threading
import types

import generate
from chat_messages import Left, Present
from embar_session import Closed, DecodeError, Settings, connect, connect_async
from embar_session.crc32c import crc32c
from embar_session.frames import ProcessFigures, SessionFigures, StatusReply
from embar_session.protobuf import Field, Message

LONG = 60


def ended(work):
    """How a session ended that `work` was done on."""
    try:
        work()
    except Closed as why:
        return why
    raise AssertionError("the session goes on")


def codec(_):
    """Bytes that any Protobuf library makes of these messages."""
    assert crc32c(b"123456789") == 0xE3069283
    assert Present(names=["a", "", "b"]).encode() == b"\n\x01a\n\x00\n\x01b"
    assert Left(why="é").encode() == b"\x12\x02\xc3\xa9"
    assert Left.decode(b"\x0a\x01a\x7a\x03xyz\x0a\x01b") == Left(name="b"), "unknown, and twice"
    reply = StatusReply(
        outcome=1, session=SessionFigures(age_ns=300), process=ProcessFigures(sessions=1 << 63)
    )
    assert reply.encode() == b"\x08\x01\x12\x03\x40\xac\x02\x1a\x0b\x08" + b"\x80" * 9 + b"\x01"
    assert StatusReply.decode(reply.encode()) == reply

    class Numbers(Message):
        FIELDS = tuple(
            Field(number, name, name)
            for number, name in enumerate(
                "int32 sint64 fixed32 sfixed64 double float bool uint64 int64".split(), 1
            )
        ) + (Field(10, "many", "sint32", repeated=True),)

        def __init__(self):
            self.int32 = self.sint64 = self.fixed32 = self.sfixed64 = self.uint64 = self.int64 = 0
            self.double = self.float = 0.0
            self.bool, self.many = False, []

    numbers = Numbers()
    numbers.int32, numbers.sint64, numbers.fixed32, numbers.sfixed64 = -1, -(1 << 63), 7, -2
    numbers.double, numbers.float, numbers.bool = 0.5, -2.0, True
    numbers.uint64, numbers.int64, numbers.many = (1 << 64) - 1, -3, [0, -1, 64]
    data = numbers.encode()
    assert data[:11] == b"\x08" + b"\xff" * 9 + b"\x01", data
    assert data.endswith(b"\x52\x04\x00\x01\x80\x01"), data
    assert vars(Numbers.decode(data)) == vars(numbers)
    one_by_one = b"\x50\x00\x50\x01\x50\x80\x01"
    assert Numbers.decode(one_by_one).many == [0, -1, 64]
    for broken in [b"\x0a\x05a", b"\xff" * 11, b"\x0a\x02\xff\xfe", b"\x08\x01", b"\x0b", b"\x00\x00"]:
        try:
            Left.decode(broken)
        except DecodeError:
            continue
        raise AssertionError(broken)


def generator(_):
    """Files of users, with names that mean something in Python, and with what is not understood."""
    made = generate.source(
        "t.proto",
        """syntax = "proto3"; package a.b; // Message Message
        service S { rpc X(Message) returns (Field) { option deprecated = true; } }
        enum Kind { KIND_NONE = 0; KIND_1 = -1; /* ; } */ }
        message Message {
          string from = 1; repeated int32 list = 2 [packed = false]; repeated Field field = 3;
          oneof which { uint32 a = 4; Field b = 5; } Kind kind = 6; optional bool ok = 7;
          reserved 8, 9; reserved "old";
        }
        message Field {}""",
    )
    module = types.ModuleType("t_messages")
    sys.modules["t_messages"] = module
    exec(made, module.__dict__)
    message = module.Message(from_="x", list=[1, -1], field=[module.Field()], a=0, ok=False)
    message.kind, message.b = module.Kind.KIND_1, module.Field()
    assert module.Message.decode(message.encode()) == message
    assert module.Message.decode(b"") == module.Message(a=None, ok=None)
    for refused in [
        "message A { map<string, string> b = 1; }",
        "message A { message B {} }",
        'import "other.proto";',
        "message A { Unknown b = 1; }",
        "message A { string encode = 1; }",
        "message A { string b = 1;",
    ]:
        try:
            generate.source("t.proto", refused)
        except generate.Refused:
            continue
        raise AssertionError(refused)


def echo(address):
    """Messages, bodies, order, limits, and a close by this side."""
    # The default takes no bodies.
    with connect(address, b"who I am", Settings(max_body_bytes=1 << 20)) as session:
        assert session.greeting == b"welcome, who I am"
        sizes = [0, 1, 1000, 64 << 10]
        for id, size in enumerate(sizes):
            session.send(id, bytes([id]) * size)
        session.send(0xFEFF, Left(name="n"))
        for id, size in enumerate(sizes):
            message = session.receive(LONG)
            assert (message.id, message.payload) == (id, bytes([id]) * size)
        message = session.receive(LONG)
        assert (message.id, Left.decode(message.payload)) == (0xFEFF, Left(name="n"))
        session.send_body(7, b"head", b"b" * 300_000)
        message = session.receive(LONG)
        assert (message.id, message.head) == (7, b"head")
        assert message.payload == b"b" * 300_000
        for wrong in [
            lambda: session.send(1, bytes((64 << 10) + 1)),
            lambda: session.send(0xFF00, b""),
            lambda: session.send_body(1, b"", bytes(1 << 20)),
        ]:
            try:
                wrong()
            except ValueError:
                continue
            raise AssertionError("sent")
        try:
            session.receive(timeout=0.01)
        except TimeoutError:
            pass
        for number in range(1000):
            session.send(1, number.to_bytes(2, "big"))
        got = [int.from_bytes(session.receive(LONG).payload, "big") for _ in range(1000)]
        assert got == list(range(1000))
        session.goodbye("soon")
        session.send(2, b"last words")
    why = ended(lambda: session.send(1, b""))
    assert (why.by, why.name) == ("local", "FINISHED"), why
    for wrong in [
        lambda: connect("nowhere"),
        lambda: connect(address, bytes(2049)),
        lambda: connect(address, settings=Settings(keep_alive=0)),
        lambda: connect("unix:/nowhere", tls=ssl.create_default_context()),
    ]:
        try:
            wrong()
        except ValueError:
            continue
        raise AssertionError("connected")


def asyncio_echo(address):
    """Many sessions of one event loop."""

    async def one(number):
        async with await connect_async(address, b"%d" % number) as session:
            for step in range(50):
                await session.send(number, b"%d" % step)
            got = []
            async for message in session:
                assert message.id == number
                got.append(int(message.payload))
                if len(got) == 50:
                    break
            assert got == list(range(50))

    async def all():
        await asyncio.gather(*(one(number) for number in range(20)))

    asyncio.run(all())


def quiet(address):
    """Says nothing until the server says something."""
    with connect(address, settings=Settings(idle_timeout=3.0)) as session:
        while session.receive(LONG).payload != b"enough":
            pass


def refused(address):
    why = ended(lambda: connect(address, b"nobody"))
    assert (why.by, why.name, why.text) == ("peer", "REFUSED", "no such user"), why
    why = ended(lambda: connect(address, settings=Settings(protocol="other")))
    assert (why.by, why.name) == ("peer", "PROTOCOL"), why
    why = ended(lambda: connect(address, settings=Settings(protocol="other", checked=True)))
    assert (why.by, why.name) == ("peer", "PROTOCOL"), why
    # The place of those that were refused is free as soon as the server has seen them go.
    session = None
    while not session:
        try:
            session = connect(address, b"the only one")
        except Closed as why:
            assert why.name == "TOO_MANY_SESSIONS", why
    with session:
        why = ended(lambda: connect(address, b"one more"))
        assert (why.by, why.name) == ("peer", "TOO_MANY_SESSIONS"), why


def closed_by_server(address):
    session = connect(address)
    session.send(1, b"what else?")
    # All that was said before the end is there, then its reason, as often as it is asked for.
    assert [message.payload for message in session] == [b"%d" % n for n in range(500)]
    for _ in range(2):
        why = ended(lambda: session.receive(LONG))
        assert (why.by, why.name) == ("peer", "FINISHED"), why
    session.close()


def shutdown(address):
    session = connect(address)
    print("open", flush=True)
    why = ended(lambda: session.receive(LONG))
    assert (why.by, why.name) == ("peer", "SHUTDOWN"), why
    assert session.redirect == ("game.example:7000", 0.2), session.redirect


def waits_for_room(address):
    """A server that does not read holds up who sends, within bounds, and nobody else."""
    session = connect(address, settings=Settings(max_queued_bytes=64 << 10))
    sent = 0
    try:
        while True:
            session.send(1, bytes(60_000), timeout=1.0)
            sent += 1
    except TimeoutError:
        pass
    assert len(session._session._core.outgoing) < 128 << 10
    print("stuck", flush=True)
    for _ in range(sent):
        assert session.receive(LONG).id == 2
    session.close()


def does_not_read(address):
    """A program that takes nothing: what comes waits at the server."""
    session = connect(address, settings=Settings(max_waiting=4))
    print("open", flush=True)
    sys.stdin.readline()
    assert len(session._session._core.messages) < 20_000
    got = [int.from_bytes(session.receive(LONG).payload[:4], "big") for _ in range(20_000)]
    assert got == list(range(20_000))
    session.close()


def checksums(address):
    settings = Settings(protocol="sums", checked=True)
    with connect(address, settings=settings) as session:
        session.send(1, b"hello")
        assert session.receive(LONG).payload == b"hello"
        try:
            session.send_body(1, b"", b"")
        except ValueError:
            pass
        else:
            raise AssertionError("sent")
    why = ended(lambda: connect(address, settings=Settings(protocol="sums")))
    assert (why.by, why.name) == ("peer", "DAMAGED"), why


def encrypted(address, certificate):
    """An encrypted session, and a server that cannot prove who it is."""
    with open(certificate, "rb") as file:
        tls = ssl.create_default_context(cadata=file.read())
    with connect(address, b"who I am", tls=tls) as session:
        session.send(1, b"hello")
        assert session.receive(LONG).payload == b"hello"
        for number in range(20):
            session.send(1, bytes([number]) * 10_000)
        for number in range(20):
            assert session.receive(LONG).payload == bytes([number]) * 10_000
    why = ended(lambda: connect(address, b"nobody", tls=tls))
    assert (why.by, why.name, why.text) == ("peer", "REFUSED", "no such user"), why
    try:
        connect(address, tls=ssl.create_default_context())
    except ssl.SSLCertVerificationError:
        return
    raise AssertionError("trusted")


def breaks(address, *reasons):
    """A server that breaks the rules: this side closes, and says why."""
    for reason in reasons:

        def use():
            settings = Settings(hello_timeout=1.0 if reason == "HELLO_TIMEOUT" else LONG)
            settings.max_body_bytes = 1 << 20
            settings.idle_timeout = 1.0 if reason == "IDLE" else LONG
            connect(address, settings=settings).receive(LONG)

        why = ended(use)
        who = "network" if reason == "DISCONNECTED" else "local"
        assert (why.by, why.name) == (who, reason), (why, reason)


def main(scenario, *arguments):
    globals()[scenario](*(arguments or [None]))
    names = [thread.name for thread in threading.enumerate()]
    assert names.count("sessions") <= 1, "one thread for all sessions"


if __name__ == "__main__":
    main(*sys.argv[1:])
