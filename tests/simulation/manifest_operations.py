"""Operations that put the entries of manifests into others: what is live stays what it is."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from icekeep.catalog.base import Table
from icekeep.commit.changes.rewrites import RewriteManifests
from icekeep.commit.manifests import ManifestReader
from icekeep.errors import ConflictError, IcekeepError, OutcomeUnknownError
from icekeep.spec.manifests.structs import FileContent, ManifestContent, ManifestEntry, ManifestFile, Status
from icekeep.spec.manifests.write import EntryEncoder, ManifestBuilder
from icekeep.spec.metadata import TableMetadata
from simulation.client import Client
from simulation.compaction_operations import dangling, require_no_dangling
from simulation.doing import Effect
from simulation.file_operations import OnBranch
from simulation.model import Model

_TAKEN = 0.7
_PAUSES_MS = (0, 500, 2_000, 10_000)


class MergeManifests(OnBranch):
    """Puts the live entries of some manifests, of data and of deletes, into new ones, and takes its time."""

    drops_dangling = False

    def change(self, client: Client, table: Table) -> Any:
        metadata, reader = table.metadata, ManifestReader(client.storage)
        head = metadata.head(self.branch)
        manifests = [] if head is None else reader.manifests(head)
        chosen = [m for m in manifests if self.random.random() < _TAKEN]
        kinds: defaultdict[tuple[int, ManifestContent], list[ManifestEntry]] = defaultdict(list)
        for m in chosen:
            kinds[m.partition_spec_id, m.content] += [e for e in reader.entries(m, metadata) if e.is_live]
        if head is None or not (any(kinds.values()) or self.drops_dangling):
            return None
        self.locations: list[str] = []
        added = [m for kind, entries in kinds.items() for m in self._written(client, metadata, *kind, entries)]
        client.sleep_ms(self.random.choice(_PAUSES_MS))
        return RewriteManifests(
            replaced=tuple(chosen),
            added=tuple(added),
            drop_dangling_deletes=self.drops_dangling,
            proof=self.shown,
            format_version=metadata.format_version,
            branch=self.branch,
        )

    def _written(
        self,
        client: Client,
        metadata: TableMetadata,
        spec_id: int,
        content: ManifestContent,
        entries: Sequence[ManifestEntry],
    ) -> list[ManifestFile]:
        """Manifests of a few entries each, in any order."""
        version, left, written = metadata.format_version, self.random.sample(entries, len(entries)), []
        encoder = EntryEncoder(metadata.partition_type(spec_id), version)
        while left:
            location = f"{metadata.location}/metadata/merged-{self.number:03d}-{len(self.locations)}.avro"
            spec, schema = metadata.specs_by_id[spec_id], metadata.schema
            builder = ManifestBuilder(location, encoder, spec, schema, format_version=version, content=content)
            for _ in range(min(len(left), self.random.randint(1, 5))):
                builder.add(replace(left.pop(), status=Status.EXISTING))
            contents, manifest = builder.finish(None)
            self.locations.append(location)
            with client.storage.write(location) as stream:
                stream.write(contents)
            written.append(manifest)
        return written

    def commit(self, client: Client, table: Table, change: Any) -> bool:
        try:
            return super().commit(client, table, change)
        except OutcomeUnknownError:
            raise
        except IcekeepError as error:
            changed = isinstance(error, ConflictError) and "no longer in the table as it was read" in error.message
            self.model.world.seen["rewrites of manifests refused since others had changed them"] += changed
            client.storage.delete_many(self.locations)
            raise

    def effect(self, model: Model, before: TableMetadata, after: TableMetadata) -> Effect:
        return Effect(self.branch, same_rows=True)

    def check(self, model: Model, before: TableMetadata, after: TableMetadata) -> None:
        super().check(model, before, after)
        was, now = model.live(before, self.branch), model.live(after, self.branch)
        gone = sorted(path for path, file in was.items() if path not in now and file.content is not FileContent.DATA)
        reaching = sorted({*gone} - {*dangling(model, was)})
        model.require(not reaching, "D7", f"{self.name} left out {reaching}, which reach live data files")
        model.require(self.drops_dangling or not gone, "D6", f"{self.name} left out {gone}")


class MergeManifestsAndClean(MergeManifests):
    """Leaves out the delete files as well that reach nothing."""

    drops_dangling = True

    def check(self, model: Model, before: TableMetadata, after: TableMetadata) -> None:
        super().check(model, before, after)
        require_no_dangling(model, model.live(after, self.branch), self.name)
