"""Where answers go: a result as one JSON object, and files that are written as a whole or not at all."""

import codecs
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, TextIO

from icekeep.errors import UsageError
from icekeep.runtime import SYSTEM

_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def format_json(document: Mapping[str, Any], encoding: str | None = None) -> str:
    """The document on one line.

    Args:
        encoding: of where it goes. In another one than UTF-8, as where text has what no encoding has (a file's name that is no
            UTF-8), characters beyond ASCII are escaped: what reads JSON takes it for UTF-8.
    """
    text = json.dumps(document, ensure_ascii=False)
    try:
        text.encode("ascii" if encoding is not None and not _is_utf8(encoding) else "utf-8")
    except UnicodeEncodeError:
        return json.dumps(document)
    return text


def write_result_file(path: str, document: Mapping[str, Any]) -> None:
    """Write the document to a file at once; raises `UsageError` where it cannot be written."""
    write_at_once(path, format_json(document) + "\n", "result file")


def write_at_once(path: str, text: str, what: str) -> None:
    """Write a file so that a reader sees the whole of it or what was there before.

    Args:
        what: it is, as an error says.
    """
    with written_at_once(path, what) as stream:
        stream.write(text.encode())


@contextmanager
def written_at_once(path: str, what: str, *, is_new: bool = False) -> Iterator[BinaryIO]:
    """A stream into a file that is there, as a whole, when the block has ended well; else it is as it was.

    No link is followed: one that has the file's name is replaced, and nobody can guess where to put one beforehand.

    Args:
        what: it is, as an error says.
        is_new: the name must be free, also when the block has ended: what came there meanwhile stays.

    Raises:
        UsageError: the file cannot be written, or its name is taken.
    """
    target = Path(path)
    # Processes of two containers that share a directory may have one number.
    partial = target.with_name(f".{target.name}.{SYSTEM.new_uuid()}.tmp")
    try:
        with open(os.open(partial, _NEW, 0o666), "wb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        if is_new:
            _take_name(partial, target)
        else:
            partial.replace(target)
    except FileExistsError as error:
        raise _taken(path, what) from error
    except OSError as error:
        raise UsageError(f"cannot write {what} {path!r}: {(error.strerror or '').lower()}", path=path) from error
    finally:
        with suppress(OSError):
            partial.unlink()


def require_directory(path: str, what: str = "result file") -> None:
    """Refuse a file that could not be written later; raises `UsageError`."""
    directory = Path(path).absolute().parent
    if Path(path).is_dir():
        reason = "it is a directory"
    elif not directory.is_dir():
        reason = f"there is no directory {str(directory)!r}"
    elif not os.access(directory, os.W_OK):
        reason = f"no permission to write in {str(directory)!r}"
    else:
        return
    raise UsageError(
        f"cannot write {what} {path!r}: {reason}; give a file in a directory that can be written", path=path
    )


def require_new_file(path: str, what: str) -> None:
    """Refuse a file that could not be written later, or that is there already; raises `UsageError`."""
    require_directory(path, what)
    if os.path.lexists(path):
        raise _taken(path, what)


def _taken(path: str, what: str) -> UsageError:
    return UsageError(f"{what} {path!r} is there already; name another file, or delete it first", path=path)


def _take_name(partial: Path, target: Path) -> None:
    """Give a file its name, if that is free."""
    try:
        target.hardlink_to(partial)
    except FileExistsError:
        raise
    except OSError:
        # A file system without hard links: the name is taken by an empty file, and that is replaced.
        os.close(os.open(target, _NEW, 0o666))
        partial.replace(target)


def _is_utf8(encoding: str) -> bool:
    return codecs.lookup(encoding).name == "utf-8"


def write_text(text: str, stream: TextIO) -> None:
    """Write a text that is a document of its own, as a page or figures are: in UTF-8, which it says it is, in any locale."""
    raw = getattr(stream, "buffer", None)
    if raw is None or _is_utf8(stream.encoding):
        stream.write(text)
        return
    stream.flush()
    raw.write(text.encode())
