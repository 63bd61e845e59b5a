"""Live entries of manifests, in batches with the numbers of their manifests; one that cannot be read is a gap."""

from collections.abc import Iterable, Iterator, Sequence
from typing import TypeAlias

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from icekeep.catalog.base import Table
from icekeep.errors import InvalidTableError, UnsupportedError, UsageError, first_line
from icekeep.maintenance.checking.faults import Tally
from icekeep.planning.decoder import chosen_decoder
from icekeep.planning.entries import DecodeTask, EntryFilter, SpecFilter, decode
from icekeep.spec.collections import packed
from icekeep.spec.manifests.structs import ManifestFile
from icekeep.spec.types import MIB

Numbered: TypeAlias = tuple[int, ManifestFile]
"""A manifest with its number, which is its index in `Listed.manifests`."""

_CHUNK_BYTES = 5 * MIB


def decode_task(table: Table, manifests: Iterable[ManifestFile], columns: Iterable[str]) -> DecodeTask:
    """How live entries of some manifests are read: without the manifests, for `batches`."""
    spec_ids = {manifest.partition_spec_id for manifest in manifests}
    specs = {number: SpecFilter(table.metadata.partition_type(number)) for number in spec_ids}
    return DecodeTask(
        manifests=(),
        wanted=EntryFilter(specs=specs),
        columns=frozenset({"manifest_path", *columns}),
        storage=table.storage,
        decoder=chosen_decoder()[0],
    )


def chunks(manifests: Iterable[Numbered]) -> list[list[Numbered]]:
    """Neighbours of one content, some megabytes of them together."""
    in_order = sorted(manifests, key=lambda one: one[1].content)
    return [
        some
        for content in dict.fromkeys(manifest.content for _, manifest in in_order)
        for some in packed(
            (one for one in in_order if one[1].content is content), (lambda one: one[1].manifest_length, _CHUNK_BYTES)
        )
    ]


def batches(
    some: Sequence[Numbered], task: DecodeTask, tally: Tally
) -> Iterator[tuple[pa.RecordBatch, NDArray[np.int32]]]:
    """The live entries of a chunk of manifests, each with the number of its manifest.

    A manifest is noted in the tally as a gap where it cannot be read whole, and gives no entry then.

    Raises:
        TryAgainError: the store is out of reach.
    """
    manifests = tuple(manifest for _, manifest in some)
    try:
        found = [decoded.entries for decoded in decode(msgspec.structs.replace(task, manifests=manifests))]
    except (InvalidTableError, UnsupportedError, UsageError) as error:
        if len(some) == 1:
            tally.unread_manifest(manifests[0].manifest_path, first_line(error))
            return
        for one in some:
            yield from batches([one], task, tally)
        return
    numbers = np.array([number for number, _ in some], np.int32)
    paths = pa.array([manifest.manifest_path for manifest in manifests])
    for batch in found:
        if batch.num_rows:
            yield batch, numbers[pc.index_in(batch["manifest_path"], paths).to_numpy()]
