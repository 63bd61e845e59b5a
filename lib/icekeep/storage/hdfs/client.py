"""Clients of HDFS from locations and properties, one for each NameNode or nameservice, with limits to how long they wait.

hdfs-native sets no limit to what a NameNode that goes silent may take. It raises `FileExistsError`, `FileNotFoundError`
and, for a connection that failed, a plain `OSError`; all else is a `RuntimeError` whose text is its own error as Rust
prints it, such as `RPCError("java.io.IOException", "message")`, where the message goes on with Java's stack.
"""

import io
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from typing import Any, NamedTuple, cast

from hdfs_native import Client, FileReader, FileWriter

from icekeep.errors import (
    IcekeepError,
    InvalidTableError,
    MissingFileError,
    OptionError,
    UnavailableError,
    UnsupportedError,
    UsageError,
)
from icekeep.storage.locations import canonical, parse_location
from icekeep.storage.ranges import FirstAnswer, first_answer_ms, returned_in_time

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
        # The target of a rename is a directory, which the NameNode says in words only.
        if "must both be directories" in str(error):
            raise FileExistsError(reason(error)) from error
        raise translate_hdfs_error(error, action, location) from error


def reason(error: BaseException | None) -> str:
    """What hdfs-native or the NameNode says, as a part of a line of ours."""
    return _kind_and_reason(error)[1]


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


_LISTED_AT_ONCE = 1000


def impatient(client: Client, first: FirstAnswer, limit_s: float) -> Client:
    """A client whose calls, and those of its files, raise `TimeoutError` when they take longer than the limit, or the first."""
    return cast(Client, _Impatient(client, first, limit_s))


def abandon(writer: FileWriter) -> None:
    """Leave a file as it is: marked as closed, its writer does not ask the NameNode to complete it when it is collected."""
    io.RawIOBase.close(writer.target if isinstance(writer, _Impatient) else writer)


class _Impatient:
    def __init__(self, target: Any, first: FirstAnswer, limit_s: float) -> None:
        self.target = target
        self._first, self._limit_s = first, limit_s

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self.target, name)
        return self._limited(attribute) if callable(attribute) else attribute

    def _limited(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def limited(*arguments: Any, **named: Any) -> Any:
            result = self._within(lambda: call(*arguments, **named))
            if isinstance(result, FileReader | FileWriter):
                return _Impatient(result, self._first, self._limit_s)
            return self._listed(result) if _is_listing(result) else result

        return limited

    def _listed(self, entries: Iterator[Any]) -> Iterator[Any]:
        while batch := self._within(lambda: list(islice(entries, _LISTED_AT_ONCE))):
            yield from batch

    def _within(self, call: Callable[[], Any]) -> Any:
        return self._first.ask(lambda: returned_in_time(self._limit_s, call), lambda result: not _is_listing(result))


def _is_listing(result: Any) -> bool:
    """Whether a call has returned what asks the NameNode only when it is iterated."""
    return hasattr(result, "__next__")


_HADOOP = ("dfs.", "fs.", "hadoop.", "ipc.")
_DEFAULT_PORT = 8020
_UMASK = "fs.permissions.umask-mode"
_LIMIT = "ipc.client.rpc-timeout.ms"
_LIMIT_MS = "300000"
"""More than hdfs-native needs to give up a DataNode, or a NameNode that others do not take over from."""


class HdfsPath(NamedTuple):
    """Where a location is: `authority` is the NameNode or nameservice, empty for Hadoop's default file system."""

    authority: str
    path: str


def hdfs_path(location: str) -> HdfsPath:
    """Take a location apart as HDFS does: percent signs are plain, and no name contains a colon.

    >>> hdfs_path("hdfs://namenode:8020//db/./events/p=a%2Fb/")
    HdfsPath(authority='namenode:8020', path='/db/events/p=a%2Fb')

    Raises:
        UnsupportedError: it is no location of HDFS, or HDFS cannot have such a name.
    """
    scheme, authority, _ = parse_location(location)
    if scheme != "hdfs":
        raise UnsupportedError(f"location {location!r} is not in HDFS", location=location)
    path = parse_location(canonical(location)).path
    if ":" in path:
        raise UnsupportedError(
            f"location {location!r} cannot be in HDFS: no name in a path may contain a colon", location=location
        )
    try:
        path.encode()
    except UnicodeEncodeError as error:
        raise InvalidTableError(
            f"location {location!r} cannot be in HDFS: it is not UTF-8", location=location
        ) from error
    return HdfsPath(authority, path)


class HdfsClients:
    """Clients by authority, made when first needed; pickled without them.

    Read are the properties `hdfs.host`, `hdfs.port`, `hdfs.user` and `hdfs.kerberos_ticket`, and Hadoop's own (`dfs.`,
    `fs.`, `hadoop.`, `ipc.`; also with `hadoop.` before them, as Spark's catalogs have them), which go before those of the
    files in `HADOOP_CONF_DIR`. hdfs-native takes the user from `HADOOP_USER_NAME` only, so `hdfs.user` sets that for the
    whole process. A call gives up after `ipc.client.rpc-timeout.ms`, five minutes by default, and until the NameNode has
    answered once after `first-answer-timeout-ms`.

    A process that has used HDFS must not be forked: the threads and connections of hdfs-native do not work in its children.
    """

    def __init__(self, properties: Mapping[str, str]) -> None:
        self._default = _default_authority(properties)
        self._user = properties.get("hdfs.user", "")
        self._ticket = properties.get("hdfs.kerberos_ticket") or None
        self._config = {key: value for key, value in properties.items() if key.startswith(_HADOOP)}
        self._config |= {key.removeprefix("hadoop."): value for key, value in self._config.items()}
        self._made: dict[str, Client] = {}
        self._limit_s = _whole_number(self._config, _LIMIT, _LIMIT_MS, 10) / 1000
        self._first_answer_ms = first_answer_ms("", properties)
        self.umask = _whole_number(self._config, _UMASK, "022", 8)

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_made": {}}

    def at(self, location: str) -> tuple[Client, HdfsPath]:
        """The client that reaches a location, and the place where it looks."""
        place = hdfs_path(location)
        authority = place.authority or self._default
        if authority not in self._made:
            self._made[authority] = self._make(authority, location)
        return self._made[authority], HdfsPath(authority, place.path)

    def _make(self, authority: str, location: str) -> Client:
        self._become_user()
        with translated("reach", location):
            try:
                return self._client(authority)
            except RuntimeError as error:
                if ":" in authority or "No NameNode hosts found" not in str(error):
                    raise
                # Not a nameservice that is configured: a host, with the port that Hadoop takes for it.
                return self._client(f"{authority}:{_DEFAULT_PORT}")

    def _client(self, authority: str) -> Client:
        # Without a second NameNode to turn to, hdfs-native would try the same one again for minutes.
        patience = {"dfs.client.failover.max.attempts": "3"} if ":" in authority else {}
        client = Client(f"hdfs://{authority}", {**patience, **self._config}, kerberos_cache=self._ticket)
        return impatient(client, FirstAnswer(f"hdfs://{authority}", self._first_answer_ms), self._limit_s)

    def _become_user(self) -> None:
        if not self._user:
            return
        current = os.environ.setdefault("HADOOP_USER_NAME", self._user)
        if current != self._user:
            raise UsageError(
                f"property hdfs.user is {self._user!r}, but this process talks to HDFS as HADOOP_USER_NAME {current!r}; "
                "give both the same name"
            )


def _default_authority(properties: Mapping[str, str]) -> str:
    host, port = properties.get("hdfs.host", ""), properties.get("hdfs.port", "")
    if host in ("", "default"):
        return ""
    return f"{host}:{port}" if port not in ("", "0") else host


def _whole_number(config: Mapping[str, str], key: str, default: str, base: int) -> int:
    text = config.get(key, default)
    try:
        return int(text, base)
    except ValueError as error:
        raise OptionError(key, given=text, expected=f"a number such as {default!r}") from error
