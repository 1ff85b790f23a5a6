#!/usr/bin/env python3
"""Writes Python modules of Protobuf messages from .proto files, with nothing but the standard library.

    python3 generate.py            # writes the modules that this folder needs
    python3 generate.py --check    # says which of them are not what their .proto file gives
    python3 generate.py my.proto my_messages.py

It understands what a message of a session usually is: top-level messages and enums of proto3, scalar
fields, enums, other messages, `repeated`, `optional`, `oneof` and `reserved`. It refuses anything else
by name. Who needs more takes `protoc` and the package `protobuf`: a session carries bytes, whoever
made them.
"""

import keyword
import pathlib
import re
import sys

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
MODULES = [
    (ROOT / "crates/session/proto/session.proto", HERE / "embar_session/frames.py"),
    (ROOT / "examples/chat/proto/chat.proto", HERE / "chat_messages.py"),
]

# What each scalar type is in Python, and what a field has that was not sent.
SCALARS = {
    "double": ("float", "0.0"),
    "float": ("float", "0.0"),
    "bool": ("bool", "False"),
    "string": ("str", '""'),
    "bytes": ("bytes", 'b""'),
} | {
    name: ("int", "0")
    for name in (
        "int32 int64 uint32 uint64 sint32 sint64 fixed32 fixed64 sfixed32 sfixed64".split()
    )
}
FIELD = re.compile(r"(?:(repeated|optional)\s+)?([\w.]+)\s+(\w+)\s*=\s*(\d+)\s*(?:\[.*\])?$")
VALUE = re.compile(r"(\w+)\s*=\s*(-?\d+)\s*(?:\[.*\])?$")


class Refused(Exception):
    """A .proto file that says something this program does not understand."""


def parse(text):
    """The enums and messages of a .proto file: {name: [(number, name)]}, {name: [field]}."""
    text = re.sub(r"/\*.*?\*/", "", re.sub(r"//[^\n]*", "", text), flags=re.DOTALL)
    enums, messages = {}, {}
    kind, where, nested = None, None, False
    for statement, mark in re.findall(r"([^;{}]*)([;{}])", text):
        statement = " ".join(statement.split())
        if mark == "}":
            if statement:
                raise Refused(f"`{statement}` has no `;`")
            if nested:
                nested = False
            elif kind:
                kind = None
            else:
                raise Refused("a `}` too many")
        elif mark == "{":
            words = statement.split()
            if not nested and (kind, *words[:1]) in [("message", "oneof"), ("service", "rpc")]:
                nested = True
            elif kind is None and len(words) == 2 and words[0] in ("message", "enum"):
                kind = words[0]
                where = (messages if kind == "message" else enums).setdefault(words[1], [])
            elif kind is None and words[:1] == ["service"]:
                kind = "service"  # says which messages belong to a call; nothing to write
            else:
                raise Refused(f"`{statement} {{`: only messages, enums and oneofs")
        elif statement.split(" ")[0] in ("", "syntax", "package", "option", "reserved"):
            continue
        elif kind == "service":
            continue
        elif kind == "enum" and (found := VALUE.match(statement)):
            where.append((int(found[2]), found[1]))
        elif kind == "message" and (found := FIELD.match(statement)):
            if found[3] in ("FIELDS", "encode", "decode"):
                raise Refused(f"a field cannot be called `{found[3]}` in Python")
            label = "optional" if nested else found[1]
            name = found[3] + ("_" if keyword.iskeyword(found[3]) else "")
            where.append((int(found[4]), name, found[2], label))
        else:
            raise Refused(f"`{statement};` is not understood")
    if kind:
        raise Refused("a `}` is missing")
    return enums, messages


def source(origin, text):
    """The Python module of a .proto file."""
    enums, messages = parse(text)
    lines = [
        f'"""Messages of {origin}, written by generate.py: change that, not this."""',
        "",
        "from __future__ import annotations",
        "",
        "import dataclasses",
        "import enum",
        "",
        "from embar_session import protobuf",
        "",
    ]
    for name, values in enums.items():
        prefix = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).upper() + "_"
        lines += ["", f"class {name}(enum.IntEnum):"]
        for number, value in values:
            short = value.removeprefix(prefix)
            good = short.isidentifier() and not keyword.iskeyword(short)
            lines.append(f"    {short if good else value} = {number}")
        lines.append("")
    for name, fields in messages.items():
        table, members = [], []
        for number, field_name, kind, label in fields:
            if kind in SCALARS:
                python, empty, told = *SCALARS[kind], f'"{kind}"'
            elif kind in enums:
                python, empty, told = "int", "0", '"enum"'
            elif kind in messages:
                python, empty, told = kind, "None", f"lambda: {kind}"
                label = label or "optional"
            else:
                raise Refused(f"`{kind}` of {name}.{field_name} is not in this file")
            repeated = ", repeated=True" if label == "repeated" else ""
            optional = ", optional=True" if label == "optional" else ""
            table.append(f'        protobuf.Field({number}, "{field_name}", {told}{repeated}{optional}),')
            if label == "repeated":
                empty = "dataclasses.field(default_factory=lambda: [])"
                members.append(f"    {field_name}: list[{python}] = {empty}")
            elif label == "optional":
                members.append(f"    {field_name}: {python} | None = None")
            else:
                members.append(f"    {field_name}: {python} = {empty}")
        lines += ["", "@dataclasses.dataclass", f"class {name}(protobuf.Message):", *members]
        lines += [""] if members else []
        lines += ["    FIELDS = (", *table, "    )", ""]
    return "\n".join(lines).rstrip() + "\n"


def main(arguments):
    check = arguments == ["--check"]
    if check or not arguments:
        modules = MODULES
    elif len(arguments) == 2:
        modules = [tuple(pathlib.Path(argument) for argument in arguments)]
    else:
        print(__doc__, file=sys.stderr)
        return 2
    stale = False
    for proto, module in modules:
        try:
            made = source(proto.name, proto.read_text())
        except Refused as why:
            print(f"{proto}: {why}", file=sys.stderr)
            return 1
        if not check:
            module.write_text(made)
        elif not module.exists() or module.read_text() != made:
            stale = True
            print(f"{module} is not what {proto} gives: run `python3 {__file__}`", file=sys.stderr)
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
