"""From locations and properties to clients of HDFS, one for each NameNode or nameservice."""

import os
from collections.abc import Mapping
from typing import NamedTuple

from hdfs_native import Client

from icekeep.errors import InvalidTableError, OptionError, UnsupportedError, UsageError
from icekeep.storage.first_answer import FirstAnswer, first_answer_ms
from icekeep.storage.hdfs.errors import translated
from icekeep.storage.hdfs.waiting import impatient
from icekeep.storage.locations import canonical, parse_location

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
