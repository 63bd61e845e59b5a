"""A table's files under second names beside it: what a run deleted is brought back, what it wrote is removed.

    python expiration_copies.py restore TABLE PRISTINE
    python expiration_copies.py left TABLE LISTING

Metadata names files by their whole paths, so that a copy elsewhere would not do. A file whose bytes a run may change, a
metadata file or the hint, is copied; all others are linked. Standard library only: both rivals run it, in a process of its
own, for the names of a million files take memory that is not theirs.
"""

import hashlib
import json
import os
import re
import shutil
import sys
from collections.abc import Iterator

OWN_DIRECTORY = ".icekeep"

_COPIED = re.compile(r"metadata/[^/]*(\.metadata\.json|\.text)")
_POINTER = re.compile(r"metadata/(v[0-9]+\.metadata\.json|version-hint\.text)")
"""Each rival commits under these names; whatever else is there was there before."""


def take(table: str | os.PathLike[str], pristine: str | os.PathLike[str]) -> None:
    """Give all files of a table a second name; what was there of an earlier attempt is removed."""
    shutil.rmtree(pristine, ignore_errors=True)
    _put_all(table, pristine)


def restore(table: str | os.PathLike[str], pristine: str | os.PathLike[str]) -> None:
    """Make a table what it was when its files were taken, with its metadata in the page cache."""
    wanted = set(names(pristine))
    for name in names(table):
        if name not in wanted or _COPIED.fullmatch(name):
            os.unlink(os.path.join(table, name))
    shutil.rmtree(os.path.join(table, OWN_DIRECTORY), ignore_errors=True)
    _put_all(pristine, table, known=set(names(table)))
    for name in names(os.path.join(table, "metadata")):
        with open(os.path.join(table, "metadata", name), "rb") as stream:
            stream.read()


def left(table: str | os.PathLike[str], listing: str | os.PathLike[str]) -> dict[str, object]:
    """What is left of a table beside what each rival commits under a name of its own choice, one name a line in `listing`."""
    found = sorted(name for name in names(table) if not _is_own(name))
    text = "".join(f"{name}\n" for name in found)
    with open(listing, "w", encoding="utf-8") as stream:
        stream.write(text)
    return {"files": len(found), "digest": hashlib.sha256(text.encode()).hexdigest()}


def names(directory: str | os.PathLike[str]) -> Iterator[str]:
    """The files below a directory by their names from there."""
    todo = [""]
    while todo:
        above = todo.pop()
        with os.scandir(os.path.join(directory, above)) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    todo.append(f"{above}{entry.name}/")
                else:
                    yield f"{above}{entry.name}"


def _is_own(name: str) -> bool:
    """Whether a file is the pointer, or a checksum that Hadoop writes beside a file, or in icekeep's own directory."""
    base = name.rpartition("/")[2]
    is_checksum = base.startswith(".") and base.endswith(".crc")
    return is_checksum or name.startswith(f"{OWN_DIRECTORY}/") or _POINTER.fullmatch(name) is not None


def _put_all(
    source: str | os.PathLike[str], target: str | os.PathLike[str], known: set[str] | frozenset[str] = frozenset()
) -> None:
    made = set()
    for name in names(source):
        if name in known:
            continue
        directory = os.path.dirname(os.path.join(target, name))
        if directory not in made:
            os.makedirs(directory, exist_ok=True)
            made.add(directory)
        put = shutil.copy2 if _COPIED.fullmatch(name) else os.link
        put(os.path.join(source, name), os.path.join(target, name))


def main() -> None:
    work, first, second = sys.argv[1:]
    if work == "restore":
        restore(first, second)
        print("{}")
    elif work == "left":
        print(json.dumps(left(first, second)))
    else:
        raise SystemExit(f"there is no {work!r}")


if __name__ == "__main__":
    main()
