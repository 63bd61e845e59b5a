"""Typed decoding: rightly by each way, by many threads at once, and nowhere else in the package."""

import ast
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from icekeep.decoding import from_json, from_msgpack, from_plain
from kit.cases import for_each

LIB = Path(__file__).resolve().parents[2] / "lib"
DECODERS = {"decode", "convert", "Decoder"}


class Inner(msgspec.Struct, frozen=True):
    """What another value holds."""

    number: int


class Outer(msgspec.Struct, frozen=True):
    """A value of values."""

    inner: Inner
    by_name: dict[str, Inner] = {}


WHOLE = Outer(Inner(1), {"a": Inner(2)})


def test_each_way_gives_the_value():
    assert from_json(msgspec.json.encode(WHOLE), Outer) == WHOLE
    assert from_msgpack(msgspec.msgpack.encode(WHOLE), Outer) == WHOLE
    assert from_plain(msgspec.to_builtins(WHOLE), Outer) == WHOLE
    assert from_json(b"[1]", tuple[int, ...]) == (1,)
    assert from_json(b'"a"', int | str) == "a"
    assert from_plain("7", int, strict=False) == 7
    assert from_msgpack(msgspec.msgpack.encode(3), complex, lambda _, given: complex(given)) == 3 + 0j


@for_each(
    "wrong",
    [lambda: from_json(b"{}", Outer), lambda: from_msgpack(b"\x80", Outer), lambda: from_plain({"inner": 1}, Outer)],
)
def test_what_is_no_such_value_is_an_error(wrong):
    with pytest.raises(msgspec.ValidationError):
        wrong()


MANY_THREADS = """
import sys, threading
import msgspec
from icekeep.decoding import from_json, from_msgpack, from_plain
sys.setswitchinterval(1e-6)
data = {"x": {"a": 1, "b": ["c"]}, "y": {}}
ways = (
    lambda wanted: from_json(msgspec.json.encode(data), wanted),
    lambda wanted: from_msgpack(msgspec.msgpack.encode(data), wanted),
    lambda wanted: from_plain(data, wanted),
)
for _ in range(int(sys.argv[1])):
    inner = msgspec.defstruct("Inner", [("a", int), ("b", list[str])])
    outer = msgspec.defstruct("Outer", [("x", inner), ("y", dict[str, inner])])
    barrier = threading.Barrier(4)

    def use(number):
        barrier.wait()
        assert ways[number % 3](outer).x.a == 1

    threads = [threading.Thread(target=use, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
print("alive")
"""


@pytest.mark.process
def test_a_type_is_first_used_by_many_threads_at_once():
    """By msgspec itself it kills the process after some sixty types at the latest."""
    done = subprocess.run([sys.executable, "-c", MANY_THREADS, "120"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "alive\n", "")


def test_nobody_else_gives_msgspec_a_type():
    """A decoding call without a type looks at none."""
    found = []
    for path in sorted(LIB.rglob("*.py")):
        if path.name == "decoding.py":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call) or not ast.unparse(node.func).startswith("msgspec."):
                continue
            name = ast.unparse(node.func).rpartition(".")[2]
            is_typed = (
                name in ("convert", "Decoder") or len(node.args) > 1 or any(k.arg == "type" for k in node.keywords)
            )
            if name in DECODERS and is_typed:
                found.append(f"{path.relative_to(LIB)}:{node.lineno}: {ast.unparse(node.func)}")
    assert found == []
