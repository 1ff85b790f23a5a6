"""Sessions for asyncio: drives a `ClientCore` on a connection of the event loop."""

from __future__ import annotations

import asyncio
import ssl

from .core import ClientCore, Closed, Message, Settings
from .frames import Reason
from .protobuf import Message as Encoded

# Most bytes that are handed to the connection at once.
PIECE_BYTES = 64 << 10


async def connect(
    address: str,
    greeting: bytes = b"",
    settings: Settings | None = None,
    tls: ssl.SSLContext | None = None,
) -> AsyncSession:
    """Connects to `host:port` or `unix:/path`, and waits until the session is open. With `tls`, for
    example `ssl.create_default_context()`, it is encrypted.

    Raises `Closed` if the server refuses, and `OSError` if there is none.
    """
    settings = settings or Settings()
    loop = asyncio.get_running_loop()
    core = ClientCore(settings, greeting, loop.time())
    session = AsyncSession(core, loop)
    if address.startswith("unix:"):
        if tls:
            raise ValueError("sessions by Unix sockets are not encrypted")
        connecting = loop.create_unix_connection(lambda: session._driver, address[len("unix:") :])
    else:
        host, _, port = address.rpartition(":")
        if not host or not port.isdigit():
            raise ValueError(f"{address!r} is no address: write host:port or unix:/path")
        host = host.strip("[]")
        connecting = loop.create_connection(lambda: session._driver, host, int(port), ssl=tls)
    await asyncio.wait_for(connecting, settings.hello_timeout)
    try:
        await session._until(lambda: core.greeting is not None, None)
    except BaseException:
        session._driver.abort()
        raise
    return session


class AsyncSession:
    """An open session."""

    def __init__(self, core: ClientCore, loop: asyncio.AbstractEventLoop):
        self._core, self._loop = core, loop
        self._driver = _Driver(core, loop)

    @property
    def greeting(self) -> bytes:
        """What the server's program said in the handshake."""
        return self._core.greeting or b""

    @property
    def leaving(self) -> str | None:
        """What the server said if it is about to end: ask for nothing new."""
        return self._core.leaving

    @property
    def redirect(self) -> tuple[str, float] | None:
        """Where the server asked to connect instead, and in how many seconds. It may say anything: check it."""
        return self._core.redirect

    @property
    def closed(self) -> Closed | None:
        """How it ended, if it has."""
        return self._core.closed

    @property
    def round_trip(self) -> float | None:
        """Seconds that the latest PING took to be answered."""
        return self._core.round_trip

    async def send(self, id: int, message: bytes | Encoded, timeout: float | None = None) -> None:
        """Sends a message. Waits while the server does not read; raises `TimeoutError` when that
        takes too long, and `Closed` when the session has ended."""
        await self._until(self._has_room, timeout)
        self._core.send(id, message, self._loop.time())
        self._driver.act()

    async def send_body(
        self, id: int, head: bytes, body: bytes, timeout: float | None = None
    ) -> None:
        """As `send`, for a message with a head and a body, of the protocol "plain"."""
        await self._until(self._has_room, timeout)
        self._core.send_body(id, head, body, self._loop.time())
        self._driver.act()

    async def receive(self, timeout: float | None = None) -> Message:
        """The next message. Raises `Closed` behind the last one."""
        await self._until(lambda: bool(self._core.messages), timeout)
        message = self._core.messages.popleft()
        self._driver.act()
        return message

    async def goodbye(self, text: str = "") -> None:
        """Tells the server that this end is about to close."""
        self._core.goodbye(text, self._loop.time())
        self._driver.act()

    async def close(self, reason: int = Reason.FINISHED, text: str = "") -> None:
        """Ends the session in good order: what was sent arrives, and nothing more is heard."""
        self._core.close(self._loop.time(), reason, text)
        self._driver.act()
        await self._driver.lost.wait()

    async def __aenter__(self) -> AsyncSession:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def __aiter__(self):
        try:
            while True:
                yield await self.receive()
        except Closed as why:
            if why.by != "local" and why.reason != Reason.FINISHED:
                raise

    def _has_room(self) -> bool:
        return len(self._core.outgoing) < self._core.settings.max_queued_bytes

    async def _until(self, ready, timeout: float | None) -> None:
        deadline = None if timeout is None else self._loop.time() + timeout
        while not ready():
            if self._core.closed:
                raise Closed(*self._core.closed.args)
            left = None if deadline is None else deadline - self._loop.time()
            # Nothing is taken before the wait is over, so none is lost by giving up.
            await asyncio.wait_for(self._driver.changed(), left)


class _Driver(asyncio.Protocol):
    """Carries out what the core wants, after whatever happens."""

    def __init__(self, core: ClientCore, loop: asyncio.AbstractEventLoop):
        self.core, self.loop = core, loop
        self.lost = asyncio.Event()
        self._transport: asyncio.Transport | None = None
        self._waiting: set[asyncio.Future] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._may_write, self._reads, self._said_all = True, True, False

    async def changed(self) -> None:
        """Returns when something happened."""
        waiter = self.loop.create_future()
        self._waiting.add(waiter)
        try:
            await waiter
        finally:
            self._waiting.discard(waiter)

    def abort(self) -> None:
        self.core.cut()
        if self._transport:
            self._transport.abort()

    def connection_made(self, transport) -> None:
        self._transport = transport
        # Told at once when the connection takes no more, so that nothing gathers out of sight. (With
        # a limit of 0, asyncio's TLS pauses behind every write.)
        transport.set_write_buffer_limits(high=1)
        self.act()

    def data_received(self, data: bytes) -> None:
        self.core.received(data, self.loop.time())
        self.act()

    def eof_received(self) -> None:
        self.core.ended()
        self.act()

    def connection_lost(self, _: Exception | None) -> None:
        self.core.ended()
        self.lost.set()
        self.act()

    def pause_writing(self) -> None:
        self._may_write = False

    def resume_writing(self) -> None:
        self._may_write = True
        self.act()

    def act(self) -> None:
        core, transport, now = self.core, self._transport, self.loop.time()
        while core.outgoing and self._may_write and not self.lost.is_set():
            transport.write(core.take(PIECE_BYTES, now))
        if core.closed and not self.lost.is_set():
            self._end(core, transport)
        elif not self.lost.is_set():
            self._flow(core, transport, now)
        if self._timer:
            self._timer.cancel()
        due = None if self.lost.is_set() else core.next_tick()
        self._timer = None if due is None else self.loop.call_at(due, self._tick)
        for waiter in self._waiting:
            if not waiter.done():
                waiter.set_result(None)

    def _flow(self, core: ClientCore, transport, now: float) -> None:
        """Stops reading while the program does not take what came."""
        waiting, most = len(core.messages), core.settings.max_waiting
        if self._reads and waiting >= most:
            self._reads = False
            transport.pause_reading()
        elif not self._reads and waiting <= most // 2:
            self._reads = True
            core.tick(now, reads=False)  # the silence was ours
            transport.resume_reading()

    def _end(self, core: ClientCore, transport) -> None:
        if not self._reads:
            self._reads = True
            transport.resume_reading()
        if not core.said_close:
            # The server said CLOSE, or is gone: there is nobody to talk to.
            transport.abort()
        elif not core.outgoing and self._may_write and not self._said_all:
            self._said_all = True
            if transport.can_write_eof():
                transport.write_eof()
            else:
                transport.close()  # TLS says close_notify in both directions

    def _tick(self) -> None:
        self.core.tick(self.loop.time(), self._reads)
        if self.core.closed and self.core.next_tick() is not None and self._lingered():
            self._transport.abort()
        self.act()

    def _lingered(self) -> bool:
        return self.loop.time() >= self.core.next_tick()
