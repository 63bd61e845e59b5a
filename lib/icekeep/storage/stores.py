"""Which schemes and authorities name one store: the one table, for all that opens, compares or delimits locations.

A store is told by the scheme that stands for it here, and by one spelling of its authority: the bucket, Azure's container and
account, the NameNode. What only a property or a configuration tells is not in a spelling, and such names stay apart: the account
of an Azure container that is named alone, the hosts of a nameservice, Hadoop's default file system. Where that may cost a file,
paths have to be compared without their stores.
"""

import re
from collections.abc import Mapping

FILE, HDFS, S3, GCS, AZURE = "file", "hdfs", "s3", "gs", "abfs"

SCHEMES: Mapping[str, tuple[str, ...]] = {
    FILE: ("file",),
    HDFS: ("hdfs",),
    S3: ("s3", "s3a", "s3n"),
    GCS: ("gs", "gcs"),
    AZURE: ("abfs", "abfss", "wasb", "wasbs", "az"),
}
"""All schemes of each kind of store."""

STORES_OF_KEYS = frozenset({S3, GCS, AZURE})
"""Where a file is an object under a key, so that `a//b` and `a/../a/b` are names of their own and not spellings of `a/b`."""

_KIND_OF = {scheme: kind for kind, schemes in SCHEMES.items() for scheme in schemes}
_NAMENODE_PORT = ":8020"
_AZURE_HOST = ".dfs.core.windows.net"
"""What follows an account that stands alone."""

_ENDPOINT = re.compile(r"(?<=@)([^.@]*)\.(?:blob|dfs)\.(?=[^@]*$)")


def store_kind(scheme: str) -> str:
    """The scheme that stands for all that lead to one kind of store; one that is not known stands for itself.

    >>> store_kind("s3a"), store_kind("gcs"), store_kind("oss")
    ('s3', 'gs', 'oss')
    """
    return _KIND_OF.get(scheme, scheme)


def store_authority(kind: str, authority: str) -> str:
    """The spelling that stands for all that name one store of a kind.

    >>> store_authority("abfs", "files@account.blob.core.windows.net"), store_authority("hdfs", "nn1:8020")
    ('files@account.dfs.core.windows.net', 'nn1')
    """
    if kind == HDFS:
        return authority.lower().removesuffix(_NAMENODE_PORT)
    container, at, host = authority.rpartition("@")
    if kind != AZURE or not at:
        return authority
    account = f"{container}@{host.lower()}"
    return _ENDPOINT.sub(r"\1.dfs.", account) if "." in host else account + _AZURE_HOST


def store_authorities(kind: str, authority: str) -> list[str]:
    """All spellings in small letters of an authority that `store_authority` gave.

    >>> store_authorities("hdfs", "nn1")
    ['nn1', 'nn1:8020']
    """
    if kind == HDFS and authority and ":" not in authority:
        return [authority, authority + _NAMENODE_PORT]
    if kind != AZURE or "@" not in authority:
        return [authority]
    spellings = [authority, _ENDPOINT.sub(r"\1.blob.", authority), authority.removesuffix(_AZURE_HOST)]
    return [one for one in dict.fromkeys(spellings) if store_authority(kind, one) == authority]
