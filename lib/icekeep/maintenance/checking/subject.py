"""What is checked: the table as it was loaded, its metadata as the file has it, and the snapshots that are looked at."""

from collections.abc import Mapping
from typing import Any

import msgspec
from pyroaring import BitMap

from icekeep.catalog.base import Table
from icekeep.events import Listener
from icekeep.maintenance.checking.faults import Tally
from icekeep.planning.spark.session import SparkSource
from icekeep.spec.manifests.structs import ManifestFile
from icekeep.spec.snapshots import Snapshot


class Subject(msgspec.Struct, frozen=True, kw_only=True):
    """A table under examination.

    Attributes:
        raw: the metadata file's JSON object.
        snapshots: those that are looked at, the oldest first: all of the table, or the head of one reference.
        tally: takes all faults; of this process only, tasks have their own and it takes them in.
        is_current: whether the table is what its catalog has; earlier metadata is not, and snapshots that expired since count.
    """

    table: Table
    raw: Mapping[str, Any]
    snapshots: tuple[Snapshot, ...]
    spark: SparkSource
    listener: Listener
    tally: Tally
    is_current: bool = True


class Listed(msgspec.Struct, frozen=True, kw_only=True):
    """The manifests that the lists of the snapshots name.

    Attributes:
        manifests: each once, by location; as the oldest snapshot's list describes it. Only those whose rows make sense: a
            spec that the table has, a length, a content.
        members: by snapshot the indices of its manifests in `manifests`; a snapshot whose list could not be read is not there.
        since: by index of a manifest the oldest snapshot that has it.
        unread: snapshots of which a manifest is not in `manifests`, since it or its row in the list could not be read.
    """

    manifests: tuple[ManifestFile, ...]
    members: Mapping[int, BitMap]
    since: tuple[int, ...]
    unread: frozenset[int]
