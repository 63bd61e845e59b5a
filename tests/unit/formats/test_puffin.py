import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.table.puffin import PuffinFile
from pyroaring import BitMap64

from icekeep.errors import IcekeepBug, InvalidTableError, MissingFileError
from icekeep.formats.puffin import (
    MAGIC,
    BlobMetadata,
    PuffinWriter,
    VectorTarget,
    frame,
    read_deletion_vector,
    read_puffin_footer,
    read_range,
    write_deletion_vectors,
)
from icekeep.spec.manifests.structs import FileContent
from kit.storage import MemoryStorage

LOCATION = "memory://lake/wh/db/events/metadata/a.puffin"


@pytest.fixture
def storage():
    return MemoryStorage()


def written(storage: MemoryStorage, *blobs: bytes) -> bytes:
    with PuffinWriter(storage, LOCATION, {"owner": "us"}) as writer:
        for number, blob in enumerate(blobs):
            writer.add(
                blob, f"kind-{number}", fields=(number,), snapshot_id=7, sequence_number=8, properties={"ndv": "3"}
            )
    data = storage.read(LOCATION)
    assert writer.length_bytes == len(data)
    return data


def rewritten(storage: MemoryStorage, data: bytes) -> None:
    storage.delete_many([LOCATION])
    storage.create(LOCATION, data)


def test_a_file_is_magic_blobs_footer_magic(storage):
    data = written(storage, b"first", b"second")
    payload_start = 4 + len(b"firstsecond") + 4
    assert data[: payload_start - 4] == MAGIC + b"firstsecond"
    assert data[payload_start - 4 : payload_start] == MAGIC
    length = int.from_bytes(data[-12:-8], "little")
    assert data[payload_start : payload_start + length].startswith(b'{"blobs":[')
    assert data[-8:] == bytes(4) + MAGIC
    assert payload_start + length + 12 == len(data)


def test_the_footer_tells_where_each_blob_lies(storage):
    written(storage, b"first", b"second")
    footer = read_puffin_footer(storage, LOCATION)
    assert footer.properties == {"created-by": "icekeep", "owner": "us"}
    assert footer.blobs[1] == BlobMetadata(
        type="kind-1", fields=(1,), snapshot_id=7, sequence_number=8, offset=9, length=6, properties={"ndv": "3"}
    )
    assert [read_range(storage, LOCATION, blob.offset, blob.length) for blob in footer.blobs] == [b"first", b"second"]


def test_unknown_keys_of_a_blob_are_kept(storage):
    data = written(storage, b"x").replace(b'"properties":{"ndv":"3"}', b'"w":1,"properties":{   }')
    rewritten(storage, data)
    (blob,) = read_puffin_footer(storage, LOCATION).blobs
    assert blob.extra == {"w": 1}


def packed_footer(data: bytes) -> bytes:
    """The same file with a footer in an LZ4 frame."""
    length = int.from_bytes(data[-12:-8], "little")
    payload = data[-12 - length : -12]
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "lz4") as stream:
        stream.write(payload)
    packed = sink.getvalue().to_pybytes()
    return data[: -12 - length] + packed + len(packed).to_bytes(4, "little") + b"\x01\0\0\0" + MAGIC


def test_a_packed_footer_is_unpacked(storage):
    data = written(storage, b"first")
    before = read_puffin_footer(storage, LOCATION)
    rewritten(storage, packed_footer(data))
    assert read_puffin_footer(storage, LOCATION) == before


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda d: b"", "it is too short"),
        (lambda d: d[:-1], "it does not end as a Puffin file does"),
        (lambda d: b"PFA2" + d[4:], "it does not begin as a Puffin file does"),
        (lambda d: d[:-8] + b"\x02\0\0\0" + MAGIC, "it does not end as a Puffin file does"),
        (lambda d: d[:-12] + b"\xff\xff\xff\x7f" + d[-8:], "its footer says that it is 2147483647 bytes long"),
        (lambda d: d[:-12] + b"\xff\xff\xff\xff" + d[-8:], "its footer says that it is -1 bytes long"),
        (lambda d: d[:-12] + b"\xff\0\0\0" + d[-8:], "it is too short"),
        (lambda d: d.replace(b'"blobs":', b'"blubs":'), "its footer has no list of blobs"),
        (lambda d: d.replace(b'"offset":4', b'"offset":3'), "a blob lies at bytes 3 to 8, outside of the blobs"),
        (lambda d: d.replace(b'"length":5', b'"length":6'), "a blob lies at bytes 4 to 10, outside of the blobs"),
        (lambda d: d.replace(b'"type":', b'"tipe":'), "blobs\\[0\\]: object missing required field `type`"),
        (lambda d: d.replace(b'{"blobs"', b'["blobs"'), "JSON is malformed"),
        (lambda d: packed_footer(d).replace(b"\x04\x22\x4d\x18", b"\x04\x22\x4d\x19"), "its footer cannot be unpacked"),
    ],
)
def test_a_damaged_file_is_refused(storage, change, problem: str):
    rewritten(storage, change(written(storage, b"first")))
    with pytest.raises(InvalidTableError, match=f"cannot read Puffin file '{LOCATION}': .*{problem}"):
        read_puffin_footer(storage, LOCATION)


@given(st.integers(0, 10_000), st.integers(1, 255))
def test_a_changed_file_is_read_or_refused_by_an_error_of_ours(position: int, change: int):
    storage = MemoryStorage()
    data = bytearray(written(storage, b"first", b"second"))
    data[position % len(data)] ^= change
    rewritten(storage, bytes(data))
    try:
        footer = read_puffin_footer(storage, LOCATION)
    except InvalidTableError:
        return
    assert len(footer.blobs) == 2


def test_what_is_not_there_is_not_read(storage):
    with pytest.raises(MissingFileError):
        read_puffin_footer(storage, LOCATION)
    storage.create(LOCATION, b"12345")
    assert read_range(storage, LOCATION, 1, 3) == b"234"
    with pytest.raises(InvalidTableError, match="ends before byte 7"):
        read_range(storage, LOCATION, 4, 3)
    with pytest.raises(InvalidTableError, match="is asked for 3 bytes from -1"):
        read_range(storage, LOCATION, -1, 3)


def test_a_writer_that_fails_leaves_no_file(storage):
    def fail() -> None:
        with PuffinWriter(storage, LOCATION) as writer:
            writer.add(b"first", "t")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert storage.head(LOCATION) is None


VECTORS = "memory://lake/wh/db/events/data/dv.puffin"
A = VectorTarget(location="memory://lake/wh/db/events/data/a.parquet", spec_id=3, partition=(1,))
B = VectorTarget(location="memory://lake/wh/db/events/data/b.parquet", spec_id=3, partition=(2,))


def test_one_file_holds_the_vectors_of_several_data_files(storage):
    files = write_deletion_vectors(storage, VECTORS, [(A, BitMap64([0, 5])), (B, BitMap64([7]))])
    assert [list(read_deletion_vector(storage, file)) for file in files] == [[0, 5], [7]]
    first, second = files
    assert (first.file_path, first.content, first.file_format) == (VECTORS, FileContent.POSITION_DELETES, "PUFFIN")
    assert (first.spec_id, first.partition, first.referenced_data_file) == (3, (1,), A.location)
    assert (first.record_count, second.record_count) == (2, 1)
    assert first.file_size_in_bytes == second.file_size_in_bytes == storage.head(VECTORS).size_bytes


def test_the_footer_says_what_the_entries_say(storage):
    files = write_deletion_vectors(storage, VECTORS, [(A, BitMap64([0, 5])), (B, BitMap64([7]))])
    blobs = read_puffin_footer(storage, VECTORS).blobs
    assert [(b.offset, b.length) for b in blobs] == [(f.content_offset, f.content_size_in_bytes) for f in files]
    assert {(b.type, b.snapshot_id, b.sequence_number, b.compression_codec) for b in blobs} == {
        ("deletion-vector-v1", -1, -1, None)
    }
    assert blobs[0].properties == {"referenced-data-file": A.location, "cardinality": "2"}


_POSITIONS = st.one_of(
    st.integers(0, 200), st.integers(2**16 - 2, 2**16 + 2), st.integers(2**32 - 2, 2**32 + 2), st.integers(0, 2**63 - 1)
)
_RUNS = st.tuples(_POSITIONS, st.integers(1, 5000)).map(lambda run: range(run[0], min(sum(run), 2**63)))


@given(st.sets(_POSITIONS, min_size=1) | _RUNS.map(set))
def test_any_positions_are_written_and_read_back(positions: set[int]):
    storage = MemoryStorage()
    (file,) = write_deletion_vectors(storage, VECTORS, [(A, BitMap64(positions))])
    assert set(read_deletion_vector(storage, file)) == positions


@given(st.sets(st.integers(0, 2**32 - 1), min_size=1, max_size=20))
def test_pyiceberg_reads_the_same_positions(positions: set[int]):
    # It fails on vectors that skip a whole bitmap of 2^32 positions.
    storage = MemoryStorage()
    write_deletion_vectors(storage, VECTORS, [(A, BitMap64(positions)), (B, BitMap64([1]))])
    vectors = PuffinFile(storage.read(VECTORS)).to_vector()
    assert vectors[A.location].to_pylist() == sorted(positions)
    assert vectors[B.location].to_pylist() == [1]


def test_invalid_vectors_are_not_written(storage):
    for vectors, problem in (
        ([(A, BitMap64())], "deletes nothing"),
        ([(A, BitMap64([1])), (A, BitMap64([2]))], "two deletion vectors for"),
        ([(A, BitMap64([1, 2**63]))], f"row position {2**63} is too great"),
    ):
        with pytest.raises(IcekeepBug, match=problem):
            write_deletion_vectors(storage, VECTORS, vectors)
        assert storage.head(VECTORS) is None


def test_vector_with_wrong_position_count_is_refused(storage):
    (file,) = write_deletion_vectors(storage, VECTORS, [(A, BitMap64([0, 5]))])
    with pytest.raises(InvalidTableError, match="deletes 2 rows, but its manifest says 3"):
        read_deletion_vector(storage, msgspec.structs.replace(file, record_count=3))


@pytest.mark.parametrize("missing", ["content_offset", "content_size_in_bytes", "referenced_data_file"])
def test_an_entry_that_is_no_vector_is_refused(storage, missing: str):
    (file,) = write_deletion_vectors(storage, VECTORS, [(A, BitMap64([0, 5]))])
    with pytest.raises(InvalidTableError, match="is no deletion vector"):
        read_deletion_vector(storage, msgspec.structs.replace(file, **{missing: None}))


@pytest.mark.parametrize("bitmap", [b"", b"\x01" * 8, b"\xff" * 64, BitMap64([1, 2]).serialize()[:-1]])
def test_invalid_bitmap_is_refused_despite_checksum(storage, bitmap: bytes):
    (file,) = write_deletion_vectors(storage, VECTORS, [(A, BitMap64([0, 5]))])
    blob = frame(bytes(bitmap))
    storage.delete_many([VECTORS])
    storage.create(VECTORS, b"PFA1" + blob)
    with pytest.raises(InvalidTableError, match="cannot be read"):
        read_deletion_vector(storage, msgspec.structs.replace(file, content_size_in_bytes=len(blob)))


@given(st.binary(max_size=80))
def test_no_bytes_crash_the_reader(data: bytes):
    storage = MemoryStorage()
    (file,) = write_deletion_vectors(storage, VECTORS, [(A, BitMap64([0, 5]))])
    blob = frame(data)
    storage.delete_many([VECTORS])
    storage.create(VECTORS, b"PFA1" + blob)
    try:
        positions = read_deletion_vector(storage, msgspec.structs.replace(file, content_size_in_bytes=len(blob)))
    except InvalidTableError:
        return
    assert len(positions) == 2
