"""Which process of which machine this is, as a text that another process of the machine can compare with what runs there; and
how a command ends that is interrupted before it began.

A killed run leaves no word. A process on the same machine, in the same container, that finds its name sees at once that
it is gone; from anywhere else only time shows it.
"""

import os
import sys
from functools import cache
from pathlib import Path

_PROC = Path("/proc")


def interrupted_early() -> int:
    """The exit status after Ctrl-C while modules are loaded, which takes a moment, before anything else begins."""
    sys.stderr.write("icekeep: interrupted before it began; nothing was changed\n")
    return 130


def process_name() -> str:
    """The name of this process; empty where the system does not tell enough to make one."""
    return _own_name(os.getpid())


def has_ended(name: str) -> bool:
    """Whether the process of a name is gone for certain; false for one of another machine or container."""
    where, _, number = name.rpartition("/pid:")
    pid = number.partition("@")[0]
    if not where or not pid.isdecimal() or where != _where():
        return False
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except OSError:
        # It is there, and somebody else's.
        pass
    # What cannot be looked at may be the one that is meant.
    found = _name(int(pid))
    return found not in ("", name)


@cache
def _own_name(pid: int) -> str:
    """Remembered by the number, since a process that was forked remembers what its parent does."""
    return _name(pid)


def _name(pid: int) -> str:
    """The process of a number, told apart from later ones of the same number by when it began; empty if there is none."""
    where = _where()
    try:
        # The name of the program is in parentheses and may hold any character; what follows does not.
        fields = (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return f"{where}/pid:{pid}@{fields[19]}" if where and len(fields) > 19 else ""


def _where() -> str:
    """The machine since it was started, and its name space of process numbers, which containers have of their own."""
    try:
        boot = (_PROC / "sys/kernel/random/boot_id").read_text().strip()
        return f"boot:{boot}/{(_PROC / 'self/ns/pid').readlink()}"
    except OSError:
        return ""
