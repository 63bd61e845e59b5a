"""What is left of a metadata file that has faults: its bytes, its JSON if it is any, and what its text still tells.

Why faults stay as they are.

Which earlier metadata file a table begins again from: the newest that is sound and, as far as can be told, was the table.

A commit that loses a race, or is killed, may leave a sound metadata file that never was the table. What was the table is in the
log of what came after it: in the spoilt file, or in others beside it, be they ever so unsound or of lost races themselves.

What a fault tells of files, for those who look for them; nothing is written that goes by it alone.

Whether files that a rewrite has read are read today as what it wrote is.
"""

import hashlib
import json
import re
import shlex
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import msgspec

from icekeep.catalog.base import Pointer, Table
from icekeep.catalog.metadata_files import file_version, is_metadata_file, parse_version_name
from icekeep.errors import InvalidTableError, MissingFileError, UnavailableError, UnsupportedError, first_line
from icekeep.formats.arrow.schema import all_have_ids, field_ids
from icekeep.formats.reader import open_reader
from icekeep.maintenance.check.earlier_metadata import EarlierMetadata, last_sound
from icekeep.maintenance.check.faults import CLASSES, Fault, FaultId, Tally
from icekeep.maintenance.check.metadata import check_metadata, is_uuid
from icekeep.spec.manifests.structs import DataFile
from icekeep.spec.metadata import metadata_document, unpacked_head
from icekeep.spec.schema import Schema
from icekeep.spec.snapshots import Snapshot
from icekeep.storage.base import FileInfo, ListingShare, Storage
from icekeep.storage.locations import canonical, is_location

_TEXT_MAX_BYTES = 256 << 20
_CHUNK_BYTES = 64 << 10
_UUID = re.compile(rb'"table-uuid"\s*:\s*"([0-9A-Za-z-]{1,64})"')
_SNAPSHOT_ID = re.compile(rb'"snapshot-id"\s*:\s*([0-9]{1,19})\b')


class SpoiltMetadata(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """A metadata file as it is found.

    Attributes:
        data: its bytes; `None` where it is not there.
        raw: its JSON; `None` where it is none.
        tally: the faults that it has.
        previous_location: what the catalog says was the table before it, where it says that.
    """

    location: str
    storage: Storage
    previous_location: str | None
    data: bytes | None
    raw: Any
    tally: Tally

    @property
    def digest(self) -> str:
        """Tells whether a file is still what it was, a missing one among them."""
        return digest_of(self.data)

    @cached_property
    def text(self) -> bytes:
        """As much of its text as can be unpacked."""
        return salvaged(self.data or b"")

    @cached_property
    def table_uuid(self) -> str | None:
        """Whose it says that it is, in lower case; `None` where that is lost, or no UUID."""
        return uuid_in(self.text)

    @property
    def log(self) -> Any:
        """Its metadata log, as far as it is JSON: that of a text that ends too early lacks the newest files, which come last."""
        return self.raw.get("metadata-log") if isinstance(self.raw, Mapping) else None

    @property
    def snapshots(self) -> list[Mapping[str, Any]]:
        """Its snapshots, as far as it is JSON."""
        found = self.raw.get("snapshots") if isinstance(self.raw, Mapping) else None
        some = found if isinstance(found, list) else []
        return [one for one in some if isinstance(one, Mapping) and type(one.get("snapshot-id")) is int]

    @property
    def has_all_snapshots(self) -> bool:
        """Whether each snapshot that it lists can be read."""
        found = self.raw.get("snapshots") if isinstance(self.raw, Mapping) else None
        return isinstance(found, list) and len(found) == len(self.snapshots)

    def named_snapshot_ids(self) -> Iterator[int]:
        """The snapshots that its text names anywhere, each once."""
        return iter(dict.fromkeys(int(one) for one in _SNAPSHOT_ID.findall(self.text)))

    def follows(self, location: str) -> bool:
        """Whether a metadata file was the table: the catalog says so, or its text names it, as it names those in its log."""
        if self.previous_location is not None and canonical(self.previous_location) == canonical(location):
            return True
        return location != self.location and is_named(location, self.text)


def read_spoilt(pointer: Pointer) -> SpoiltMetadata:
    """Read what a table's pointer leads to, and hold it against the spec.

    Raises:
        UnavailableError: storage is out of reach, or does not know what it has: nothing is said of the file then.
        UsageError: storage denies access: the same.
        UnsupportedError: it is packed in a way that we do not read: the same.
    """
    location, tally, raw = pointer.metadata_location, Tally(), None
    data = _read(pointer)
    try:
        if data is None:
            tally.add(
                Fault(number=FaultId.UNREADABLE_METADATA, where=location, detail="the metadata file is not there")
            )
        else:
            raw = metadata_document(data, location)
            check_metadata(raw, location, tally)
    except InvalidTableError as error:
        tally.add(Fault(number=FaultId.UNREADABLE_METADATA, where=location, detail=first_line(error)))
    return SpoiltMetadata(
        location=location,
        storage=pointer.storage,
        previous_location=pointer.previous_location,
        data=data,
        raw=raw,
        tally=tally,
    )


def _read(pointer: Pointer) -> bytes | None:
    location = pointer.metadata_location
    try:
        return pointer.storage.read(location)
    except MissingFileError as error:
        # Missing is what the store says twice, and in two ways.
        if pointer.storage.head(location) is None:
            return None
        raise UnavailableError(
            f"the store has metadata {location!r}, and did not give it: {first_line(error)}; run it again",
            location=location,
        ) from error


def digest_of(data: bytes | None) -> str:
    """The same for the same bytes, and another where there is no file."""
    return "missing" if data is None else hashlib.blake2b(data, digest_size=16).hexdigest()


def salvaged(data: bytes) -> bytes:
    """The text of a metadata file, up to where it cannot be unpacked any more."""
    if data.startswith(b"\x1f\x8b"):
        return b"".join(_unzipped(data))
    try:
        return unpacked_head(data, _TEXT_MAX_BYTES)
    except (zlib.error, OSError, EOFError):
        return b""


def _unzipped(data: bytes) -> Iterator[bytes]:
    stream, size = zlib.decompressobj(wbits=31), 0
    for start in range(0, len(data), _CHUNK_BYTES):
        try:
            part = stream.decompress(data[start : start + _CHUNK_BYTES], _TEXT_MAX_BYTES - size)
        except zlib.error:
            return
        size += len(part)
        yield part
        if size >= _TEXT_MAX_BYTES:
            return


def uuid_in(text: bytes) -> str | None:
    """The table's UUID that the text of a metadata file says, in lower case; `None` if it says none."""
    found = _UUID.search(text)
    said = "" if found is None else found[1].decode("ascii").lower()
    return said if is_uuid(said) else None


def is_named(location: str, text: bytes) -> bool:
    """Whether a text has the name of a file, at the end of a location. JSON may write slashes and letters otherwise."""
    name = location.rpartition("/")[2]
    return any(f"/{one}".encode() in text for one in (name, json.dumps(name)[1:-1]))


NEEDS_EARLIER = frozenset((101, 103, 104, 105, 106, 111, 114, 115, 116, 117, 118, 120, 126, 130))
"""What a metadata file can have of which it cannot be told what would be right: the table begins again from an earlier one."""


class CannotMendError(Exception):
    """A fault stays; the text says why."""


def not_accepted(what: str, locations: Sequence[str], more: str = "") -> CannotMendError:
    """Why a loss stays undone that nobody has accepted: the flag to give for it, as a shell takes it, and what would be lost."""
    return CannotMendError(f"only done with --accept-loss {shlex.quote(','.join(locations))}{more}: {what}")


def no_repair(number: int) -> str:
    """Why a kind of faults is never mended here."""
    if number in NEEDS_EARLIER:
        return (
            "the metadata file contradicts other files only, or the catalog writes metadata itself: which is right cannot be "
            "told here; look at the metadata files, and register a sound one by hand: `icekeep drop` without --purge, then "
            "`icekeep register`"
        )
    return f"there is no repair of this kind; {CLASSES[number].mend}"


def only_older(fault: Fault) -> str:
    """Why what no branch begins with is left."""
    if fault.snapshot_id is None:
        return NOT_FOUND
    return f"no branch has it at its head, only snapshot {fault.snapshot_id} or a tag; it goes with its expiration"


NOT_FOUND = "it was not found any more when it was measured again"


_READ_MAX = 20
"""So many files beside the spoilt one are read, those nearest to it by their versions."""

_TEN = 10


class Chosen(msgspec.Struct, frozen=True, kw_only=True):
    """The file to begin again from.

    Attributes:
        is_logged: whether the catalog, or some metadata log, says that it was the table.
        passed_count: of versions between it and the spoilt one, as far as their names tell.
        followers: metadata files that follow the spoilt one, and are not taken: nobody says that they ever were the table.
    """

    sound: EarlierMetadata
    is_logged: bool
    passed_count: int
    followers: tuple[str, ...] = ()


class _Around(msgspec.Struct, kw_only=True):
    """What metadata files beside the spoilt one tell.

    Attributes:
        uuids: whose they are, those that may be lost left out.
        logged: candidates that one of them names.
        followers: those that name the spoilt one.
    """

    uuids: set[str] = set()
    logged: set[str] = set()
    followers: list[str] = []


def choose(spoilt: SpoiltMetadata, accepted: Collection[str]) -> Chosen:
    """Choose the metadata file that a table begins again from.

    Args:
        accepted: locations that may be lost; metadata files among them are passed over.

    Raises:
        CannotMendError: there is none, or nobody can tell which of several was the table, or whose they are.
        UnavailableError, UsageError: storage is out of reach, or denies access.
    """
    known = {"table-uuid": spoilt.table_uuid, "metadata-log": spoilt.log}
    earlier = last_sound(spoilt.storage, spoilt.location, known, without=accepted)
    found = [one for one in earlier if not _lost_to(spoilt, one)]
    if not found:
        raise CannotMendError(
            "no earlier metadata file of the table was found that is sound; bring the file back from a backup, and "
            "`icekeep check` tells what else is there"
        )
    around = _around(spoilt, found, {canonical(one) for one in accepted if is_location(one)})
    if spoilt.follows(found[0].location):
        one, is_logged = found[0], True
    else:
        _refuse_strangers(spoilt, around)
        one, is_logged = _newest(spoilt, found, around)
    passed = file_version(spoilt.location) - file_version(one.location) - 1
    return Chosen(
        sound=one,
        is_logged=is_logged,
        passed_count=max(0, passed) if file_version(one.location) >= 0 else 0,
        followers=tuple(around.followers),
    )


def _lost_to(spoilt: SpoiltMetadata, one: EarlierMetadata) -> bool:
    """Whether a file is one of those that lost a race: the catalog says that another of its version was the table."""
    previous = spoilt.previous_location
    is_of_the_version = previous is not None and file_version(previous) == file_version(one.location) >= 0
    return is_of_the_version and not spoilt.follows(one.location)


def _newest(spoilt: SpoiltMetadata, found: list[EarlierMetadata], around: _Around) -> tuple[EarlierMetadata, bool]:
    """The newest by version; of several of one version the one that a log names."""
    newest = max(found, key=lambda one: file_version(one.location))
    rivals = [newest]
    if file_version(newest.location) >= 0:
        rivals = [one for one in found if file_version(one.location) == file_version(newest.location)]
    logged = [one for one in rivals if one.location in around.logged or spoilt.follows(one.location)]
    if len(logged) == 1:
        return logged[0], True
    if len(rivals) == 1 and _are_versions(newest.location, spoilt.location):
        return newest, True
    if len(rivals) > 1:
        raise CannotMendError(
            f"{len(rivals)} sound metadata files have the version before it, and nothing tells which of them was the table; the "
            f"others are of commits that never landed: {', '.join(repr(one.location) for one in rivals)}; look at them, and "
            "name those that were not the table by --accept-loss too"
        )
    return newest, False


def _are_versions(*locations: str) -> bool:
    """Whether files have the names of versions in a directory, each of which lands by being created, and so was the table."""
    return all(parse_version_name(one.rpartition("/")[2]) is not None for one in locations)


def _refuse_strangers(spoilt: SpoiltMetadata, around: _Around) -> None:
    if spoilt.table_uuid is None and len(around.uuids) > 1:
        directory = spoilt.location.rpartition("/")[0]
        raise CannotMendError(
            f"metadata of {len(around.uuids)} tables lies in {directory!r}, and nothing that is left of the file says which of "
            "them this one is; find out, and register its metadata by hand: `icekeep drop` without --purge, then "
            "`icekeep register`"
        )


def _around(spoilt: SpoiltMetadata, found: list[EarlierMetadata], accepted: Collection[str]) -> _Around:
    """Look at metadata files beside the spoilt one, one after the other."""
    around = _Around()
    own_uuid = spoilt.table_uuid
    for location in _beside(spoilt):
        try:
            text = salvaged(spoilt.storage.read(location))
        except MissingFileError:
            continue
        said = uuid_in(text)
        if said is not None and canonical(location) not in accepted:
            around.uuids.add(said)
        # What is newer may be what a run like this one left, and names what that one took, whatever that was.
        if file_version(location) <= file_version(spoilt.location):
            around.logged |= {
                one.location for one in found if one.location != location and is_named(one.location, text)
            }
        if is_named(spoilt.location, text) and own_uuid in (None, said):
            around.followers.append(location)
    return around


def _beside(spoilt: SpoiltMetadata) -> list[str]:
    """Metadata files in the directory of the spoilt one, the nearest versions first."""
    directory, _, name = spoilt.location.rpartition("/")
    version = file_version(name)
    infos = [
        one.location
        for one in _listed(spoilt, directory, name, version)
        if is_metadata_file(one.location) and one.location.rpartition("/")[0] == directory
    ]
    others = [one for one in infos if canonical(one) != canonical(spoilt.location)]
    others.sort(key=lambda one: (abs(file_version(one) - version), one))
    return others[:_READ_MAX]


def _listed(spoilt: SpoiltMetadata, directory: str, name: str, version: int) -> Iterator[FileInfo]:
    """Files beside it; where names begin with versions only those with near ones, since manifests lie there too."""
    starts = ["v"] if name.startswith("v") else [f"{ten:04d}" for ten in _tens(version)]
    try:
        if version >= 0:
            for start in starts:
                yield from spoilt.storage.list_share(ListingShare(directory, is_deep=False, starts_with=start))
            return
    except UnsupportedError:
        # What begins alike is not together in this store's listings.
        pass
    yield from spoilt.storage.list(directory)


def _tens(version: int) -> range:
    return range(max(0, version // _TEN - 1), version // _TEN + 2)


def manifests_of(fault: Fault) -> frozenset[str]:
    """The manifests that a fault tells of."""
    facts = fault.facts
    told: set[str] = {*facts.get("manifests", ())}
    told.update(one["manifest"] for one in facts.get("entries", ()))
    if "manifest" in facts:
        told.add(facts["manifest"])
    return frozenset(told)


def paths_of(fault: Fault) -> frozenset[str]:
    """The locations of the files that a fault tells of."""
    told = [fault.facts, *fault.facts.get("entries", ())]
    return frozenset(str(one[key]) for one in told for key in ("file_path", "referenced_data_file") if one.get(key))


def schema_of(table: Table, fault: Fault) -> Schema:
    """As the check read the file: the schema of the snapshot that the fault is told of."""
    metadata = table.metadata
    snapshot = metadata.snapshots_by_id.get(fault.snapshot_id or 0)
    schema_id = metadata.current_schema_id if snapshot is None else snapshot.schema_id
    return metadata.schemas_by_id.get(metadata.current_schema_id if schema_id is None else schema_id, metadata.schema)


def refuse_other_columns(table: Table, rewrite: Snapshot, files: Iterable[DataFile]) -> None:
    """Raise `CannotMendError` where a column of the table may have other values in files than the rewrite found there.

    What the rewrite wrote has the columns of its own schema. A column that it did not know is null there, or its default, and
    is so in the files, too, unless these have it: it was dropped before, and came back with the same id. A column that it knew
    reads the same, since readers promote types alike, and an initial default never changes (spec, "Schema Evolution").
    """
    schema = _schema_of(table, rewrite)
    now = table.metadata.schema.fields_by_id
    unknown = now.keys() - schema.fields_by_id.keys()
    for field_id in now.keys() & schema.fields_by_id.keys():
        if now[field_id].initial_default != schema.fields_by_id[field_id].initial_default:
            raise CannotMendError(f"the default of column {field_id} is another one than when the file was written")
    for file in files:
        ids = _ids_of(table.storage, file)
        if unknown & ids:
            name = table.metadata.schema.names_by_id[min(unknown & ids)]
            raise CannotMendError(
                f"column {name!r} was not there when the file was written, and {file.file_path!r} has values of it"
            )


def _schema_of(table: Table, rewrite: Snapshot) -> Schema:
    schema = None if rewrite.schema_id is None else table.metadata.schemas_by_id.get(rewrite.schema_id)
    if schema is None:
        raise CannotMendError(f"snapshot {rewrite.snapshot_id}, which added it, does not say in which columns")
    return schema


def _ids_of(storage: Storage, file: DataFile) -> set[int]:
    """Without ids columns are found by names, and no metadata says which these were then."""
    try:
        with open_reader(storage, file.file_path, file.file_format) as reader:
            if not all_have_ids(reader.schema):
                raise CannotMendError(
                    f"file {file.file_path!r}, which the rewrite has read, has columns without field ids"
                )
            return field_ids(reader.schema)
    except (InvalidTableError, UnsupportedError) as error:
        raise CannotMendError(f"file {file.file_path!r} cannot be read: {first_line(error)}") from error
