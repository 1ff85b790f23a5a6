#!/usr/bin/env python3
"""A member of the chat room of examples/chat, in Python.

    cargo run -p chat -- server
    python3 clients/python/chat.py --name bob 127.0.0.1:7777

It leaves with its server. The member in Rust connects again, and says again what was not heard.
"""

import argparse
import os
import sys
import threading

from chat_messages import Join, Joined, Left, Present, Said, Say, Welcome
from embar_session import Closed, DecodeError, Reason, connect

# The ids of the messages, as examples/chat/src/packets.rs has them.
SAY, PRESENT, JOINED, LEFT, SAID, WELCOME = range(1, 7)
LINE_MAX = 2000


def clean(text):
    """Without what a terminal would obey: nobody is trusted here."""
    return "".join(c for c in text if c.isprintable())


class Screen:
    """Messages as people read them."""

    speaker = None  # the number of this member

    def line_of(self, message):
        """None if it is not one of ours; empty if there is nothing to show."""
        if message.id == WELCOME:
            self.speaker = Welcome.decode(message.payload).speaker
            return ""
        if message.id == SAID:
            said = Said.decode(message.payload)
            return "" if said.speaker == self.speaker else f"{said.name}: {said.text}"
        if message.id == JOINED:
            return f"* {Joined.decode(message.payload).name} joined"
        if message.id == LEFT:
            left = Left.decode(message.payload)
            return f"* {left.name} is gone: {left.why}" if left.why else f"* {left.name} left"
        if message.id == PRESENT:
            names = Present.decode(message.payload).names
            return f"* here: {', '.join(names)}" if names else "* nobody else is here yet"
        return None


def say_lines(session):
    """Sends what is typed, until there is no more."""
    number = 0
    try:
        for line in sys.stdin:
            text = clean(line).encode()[:LINE_MAX].decode(errors="ignore").rstrip()
            if text:
                number += 1
                session.send(SAY, Say(number=number, text=text))
        session.close()
    except Closed:
        pass  # whoever receives says why


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--name", required=True, help="what the others call you")
    parser.add_argument("address", help="where the server listens: host:port or unix:/path")
    arguments = parser.parse_args()
    try:
        join = Join(name=arguments.name, member=os.urandom(16))
        session = connect(arguments.address, join.encode())
    except (Closed, OSError, ValueError) as why:
        return f"chat: cannot join at {arguments.address}: {why}"
    threading.Thread(target=say_lines, args=[session], daemon=True).start()
    screen = Screen()
    try:
        while True:
            line = screen.line_of(session.receive())
            if line is None:
                session.close(Reason.BAD_MESSAGE, "an unknown message")
            elif line:
                print(clean(line), flush=True)
    except DecodeError as why:
        session.close(Reason.BAD_MESSAGE, str(why))
        return f"chat: the server says what cannot be read: {why}"
    except KeyboardInterrupt:
        session.close()
    except Closed as why:
        if why.by != "local" or why.reason != Reason.FINISHED:
            return f"chat: the chat is over: {why}"
        session.close()  # waits until the server has all of it
    return 0


if __name__ == "__main__":
    sys.exit(main())
