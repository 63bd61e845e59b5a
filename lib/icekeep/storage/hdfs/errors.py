"""What the errors of HDFS mean.

hdfs-native raises `FileExistsError`, `FileNotFoundError` and, for a connection that failed, a plain `OSError`; all else is a
`RuntimeError` whose text is its own error as Rust prints it, such as `RPCError("java.io.IOException", "message")`, where the
message goes on with Java's stack.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from icekeep.errors import (
    IcekeepError,
    InvalidTableError,
    MissingFileError,
    UnavailableError,
    UnsupportedError,
    UsageError,
)

FAILURES = (OSError, RuntimeError)
"""Everything that hdfs-native raises; `NotImplementedError`, for what it does not support, is one of the latter."""

_FROM_SERVER = re.compile(r'\w*RPCError\("(?:[\w.]+[.$])?(\w+)", "(.*)"\)', re.DOTALL)
_FROM_CLIENT = re.compile(r'(\w+)(?:\("?(.*?)"?\))?', re.DOTALL)
_END_OF_LINE = re.compile(r"\n|\\n")

_DENIED = {
    "AccessControlException",
    "AuthorizationException",
    "GSSAPIError",
    "InvalidToken",
    "NoSASLMechanism",
    "SASLError",
    "SaslException",
}
_ABSENT = {"FileNotFoundException", "ParentNotDirectoryException", "PathIsNotDirectoryException"}
_NOT_A_NAME = {
    "IllegalNameException",
    "InvalidPathException",
    "PathComponentTooLongException",
    "MaxDirectoryItemsExceededException",
}
_NO_WAY_BETWEEN = ("encryption zone", "across Mount points")
"""What the NameNode, or viewfs, says to a rename that it will never make."""

_OWN_WORDS = {
    "PathIsNotEmptyDirectoryException": "the directory is not empty",
    "SafeModeException": "the NameNode is in safe mode",
}


def translate_hdfs_error(error: Exception, action: str, location: str) -> IcekeepError:
    """The error of ours that says what to do about one of hdfs-native's; `action` is a verb ("read")."""
    kind, said = _kind_and_reason(error)
    message = f"cannot {action} {location!r}: {said}"
    # The NameNode denies access where a file stands in the way of a directory.
    if kind in _ABSENT or said.endswith("(is not a directory)"):
        return MissingFileError(f"cannot {action} {location!r}: there is no such file", location=location)
    if kind in _DENIED:
        return UsageError(f"{message}; run as a user who may, or name another location", location=location)
    if kind in ("InvalidArgument", "UrlParseError", "XmlParseError"):
        return UsageError(f"{message}; check the catalog's properties and HADOOP_CONF_DIR", location=location)
    if kind == "NotImplementedError" or (action == "move" and any(words in said for words in _NO_WAY_BETWEEN)):
        return UnsupportedError(message, location=location)
    if kind in _NOT_A_NAME:
        return InvalidTableError(message, location=location)
    return UnavailableError(message, location=location)


@contextmanager
def translated(action: str, location: str) -> Iterator[None]:
    """Raise what HDFS refuses as errors of ours; `FileExistsError` stays, since callers act on it."""
    try:
        yield
    except FileExistsError as error:
        raise FileExistsError(reason(error)) from error
    except FAILURES as error:
        if _is_in_the_way(error):
            raise FileExistsError(reason(error)) from error
        raise translate_hdfs_error(error, action, location) from error


def reason(error: BaseException | None) -> str:
    """What hdfs-native or the NameNode says, as a part of a line of ours."""
    return _kind_and_reason(error)[1]


def _is_in_the_way(error: Exception) -> bool:
    """Whether a rename failed because its target is a directory, which the NameNode says in words only."""
    return "must both be directories" in str(error)


def _kind_and_reason(error: BaseException | None) -> tuple[str, str]:
    """The class of an error, in Java or in Rust, and the first line of its message as a part of a line of ours."""
    text = str(error)
    if isinstance(error, FileNotFoundError):
        return "FileNotFoundException", _first_line(text)
    if isinstance(error, RuntimeError) and not isinstance(error, NotImplementedError):
        match = _FROM_SERVER.match(text) or _FROM_CLIENT.match(text)
        if match:
            kind, said = match[1], match[2] or match[1]
            return kind, _OWN_WORDS.get(kind) or _first_line(said.replace('\\"', '"'))
    return type(error).__name__, _first_line(text)


def _first_line(text: str) -> str:
    line = _END_OF_LINE.split(text, maxsplit=1)[0].strip().rstrip(".")
    return line if line[1:2].isupper() else line[:1].lower() + line[1:]
