"""What is done to tables between runs, in a process of its own. Standard library only: the Pythons of all rivals run it.

    python copies.py restore TABLE PRISTINE
    python copies.py left TABLE LISTING
    python copies.py clone SOURCE COPY [PROPERTY=VALUE...]
    python copies.py written COPY

A table that a run deletes from has all its files under second names beside it: what is gone is brought back, what is new is
removed. A file whose bytes a run may change, a metadata file or the hint, is copied; all others are linked. A table that a run
only adds to is cloned: its metadata under another location.
"""

import hashlib
import json
import os
import re
import shutil
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

OWN_DIRECTORY = ".icekeep"

_COPIED = re.compile(r"metadata/[^/]*(\.metadata\.json|\.text)")
_POINTER = re.compile(r"metadata/(v[0-9]+\.metadata\.json|version-hint\.text|[0-9]{5}-[0-9a-f-]{36}\.metadata\.json)")
"""Each rival commits under these names, or a REST catalog does for it; whatever else is there was there before."""


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


def clone(source: str | os.PathLike[str], copy: str | os.PathLike[str], *properties: str) -> None:
    """Make a table of the same snapshots at another place, in the layout of Iceberg's HadoopCatalog; what was there is removed.

    Data files stay where they are. Properties are set besides.
    """
    shutil.rmtree(copy, ignore_errors=True)
    old, new = Path(source, "metadata"), Path(copy, "metadata")
    version = int((old / "version-hint.text").read_text())
    document = json.loads((old / f"v{version}.metadata.json").read_bytes())
    document |= {"location": Path(copy).as_uri(), "table-uuid": str(uuid.uuid4()), "metadata-log": []}
    document["properties"] = document.get("properties", {}) | dict(text.split("=", 1) for text in properties)
    new.mkdir(parents=True)
    (new / "v1.metadata.json").write_text(json.dumps(document))
    (new / "version-hint.text").write_text("1")


def written(copy: str | os.PathLike[str]) -> dict[str, object]:
    """How many data files were written for a clone, and their bytes."""
    sizes = [path.stat().st_size for path in Path(copy, "data").rglob("*.parquet")]
    return {"files": len(sizes), "bytes": sum(sizes)}


WORKS = {work.__name__: work for work in (restore, left, clone, written)}


def main() -> None:
    name, *places = sys.argv[1:]
    print(json.dumps(WORKS[name](*places) or {}))


if __name__ == "__main__":
    main()
