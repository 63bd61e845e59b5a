"""The jobs in one thread: whatever they do at the same time, one thing after another."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa

from icekeep.commit.manifests import ManifestReader
from icekeep.errors import InvalidTableError
from icekeep.maintenance.delete import reachable
from icekeep.maintenance.orphans import listing
from icekeep.maintenance.orphans import metadata as metadata_files
from icekeep.maintenance.restore import files as needs
from icekeep.planning import commit_readers, entries
from icekeep.planning.manifest_lists import ListedManifests
from icekeep.planning.spark import tasks
from icekeep.spec.manifests.structs import ManifestContent, ManifestFile
from icekeep.spec.snapshots import Snapshot
from icekeep.storage import base as many
from icekeep.storage.base import Storage
from icekeep.storage.location_keys import location_keys

_TOTALS = {"total-data-files": ManifestContent.DATA, "total-delete-files": ManifestContent.DELETES}


class SerialPool:
    """As much of a pool of threads as the jobs use: everything is done when it is asked for."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        """The number of threads does not matter."""

    def __enter__(self) -> "SerialPool":
        return self

    def __exit__(self, *raised: object) -> None:
        """Nothing is left to be done."""

    def submit(self, work: Callable[..., Any], *arguments: Any) -> Future[Any]:
        done: Future[Any] = Future()
        try:
            done.set_result(work(*arguments))
        except Exception as error:  # noqa: BLE001 - as a thread would end
            done.set_exception(error)
        return done

    def shutdown(self, **how: Any) -> None:
        """Nothing is left to be done."""

    def map(self, work: Callable[..., Any], *items: Iterable[Any]) -> Iterator[Any]:
        return map(work, *items)


@contextmanager
def serially() -> Iterator[None]:
    """Whoever runs has the turn: nothing runs beside it."""
    with ExitStack() as stack:
        for module in (many, listing, metadata_files, entries, tasks):
            stack.enter_context(patch.object(module, "ThreadPoolExecutor", SerialPool))
        for module in (reachable, needs, commit_readers):
            stack.enter_context(patch.object(module, "listed_manifests", _listed_manifests))
        yield


def _listed_manifests(
    storage: Storage,
    spark: Any,
    snapshots: Sequence[Snapshot],
    *,
    check: bool,
    trust: bool = False,
    without: Any = None,
) -> ListedManifests:
    """Stands in for the function of that name: the same, one list after another."""
    reader = ManifestReader(storage)
    found: dict[str, ManifestFile] = {}
    unreadable = []
    for snapshot in snapshots:
        try:
            manifests = reader.manifests(snapshot)
        except InvalidTableError:
            if check:
                raise
            unreadable.append(snapshot.manifest_list or "")
            continue
        for total, content in _TOTALS.items():
            listed = sum(m.live_files_count or 0 for m in manifests if m.content is content)
            assert not check or snapshot.summary is None or snapshot.summary.get(total, str(listed)) == str(listed)
        found.update((m.manifest_path, m) for m in manifests)
    known = set() if without is None else set(without.tolist())
    keys = location_keys(pa.array(found, pa.string()))
    left = [m for key, m in zip(keys.tolist(), found.values(), strict=True) if key not in known]
    return ListedManifests(
        manifests=tuple(left), keys=np.unique(keys), untotalled_count=0, unreadable=tuple(unreadable)
    )
