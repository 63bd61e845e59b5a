import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.table.puffin import PuffinFile
from pyroaring import BitMap64

from icekeep.errors import IcekeepBug, InvalidTableError
from icekeep.formats.puffin import VectorTarget, read_deletion_vector, read_puffin_footer, write_deletion_vectors
from icekeep.spec.manifests.structs import FileContent
from icekeep.spec.reach import frame
from kit.storage import MemoryStorage

LOCATION = "memory://lake/wh/db/events/data/dv.puffin"
A = VectorTarget(location="memory://lake/wh/db/events/data/a.parquet", spec_id=3, partition=(1,))
B = VectorTarget(location="memory://lake/wh/db/events/data/b.parquet", spec_id=3, partition=(2,))


@pytest.fixture
def storage():
    return MemoryStorage()


def test_one_file_holds_the_vectors_of_several_data_files(storage):
    files = write_deletion_vectors(storage, LOCATION, [(A, BitMap64([0, 5])), (B, BitMap64([7]))])
    assert [list(read_deletion_vector(storage, file)) for file in files] == [[0, 5], [7]]
    first, second = files
    assert (first.file_path, first.content, first.file_format) == (LOCATION, FileContent.POSITION_DELETES, "PUFFIN")
    assert (first.spec_id, first.partition, first.referenced_data_file) == (3, (1,), A.location)
    assert (first.record_count, second.record_count) == (2, 1)
    assert first.file_size_in_bytes == second.file_size_in_bytes == storage.head(LOCATION).size_bytes


def test_the_footer_says_what_the_entries_say(storage):
    files = write_deletion_vectors(storage, LOCATION, [(A, BitMap64([0, 5])), (B, BitMap64([7]))])
    blobs = read_puffin_footer(storage, LOCATION).blobs
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
    (file,) = write_deletion_vectors(storage, LOCATION, [(A, BitMap64(positions))])
    assert set(read_deletion_vector(storage, file)) == positions


@given(st.sets(st.integers(0, 2**32 - 1), min_size=1, max_size=20))
def test_pyiceberg_reads_the_same_positions(positions: set[int]):
    # It fails on vectors that skip a whole bitmap of 2^32 positions.
    storage = MemoryStorage()
    write_deletion_vectors(storage, LOCATION, [(A, BitMap64(positions)), (B, BitMap64([1]))])
    vectors = PuffinFile(storage.read(LOCATION)).to_vector()
    assert vectors[A.location].to_pylist() == sorted(positions)
    assert vectors[B.location].to_pylist() == [1]


def test_a_vector_of_nothing_two_for_one_file_and_positions_beyond_63_bits_are_not_written(storage):
    for vectors, problem in (
        ([(A, BitMap64())], "deletes nothing"),
        ([(A, BitMap64([1])), (A, BitMap64([2]))], "two deletion vectors for"),
        ([(A, BitMap64([1, 2**63]))], f"row position {2**63} is too great"),
    ):
        with pytest.raises(IcekeepBug, match=problem):
            write_deletion_vectors(storage, LOCATION, vectors)
        assert storage.head(LOCATION) is None


def test_a_vector_with_other_positions_than_its_manifest_counts_is_refused(storage):
    (file,) = write_deletion_vectors(storage, LOCATION, [(A, BitMap64([0, 5]))])
    with pytest.raises(InvalidTableError, match="deletes 2 rows, but its manifest says 3"):
        read_deletion_vector(storage, msgspec.structs.replace(file, record_count=3))


@pytest.mark.parametrize("missing", ["content_offset", "content_size_in_bytes", "referenced_data_file"])
def test_an_entry_that_is_no_vector_is_refused(storage, missing: str):
    (file,) = write_deletion_vectors(storage, LOCATION, [(A, BitMap64([0, 5]))])
    with pytest.raises(InvalidTableError, match="is no deletion vector"):
        read_deletion_vector(storage, msgspec.structs.replace(file, **{missing: None}))


@pytest.mark.parametrize("bitmap", [b"", b"\x01" * 8, b"\xff" * 64, BitMap64([1, 2]).serialize()[:-1]])
def test_a_bitmap_that_is_none_is_refused_though_its_checksum_fits(storage, bitmap: bytes):
    (file,) = write_deletion_vectors(storage, LOCATION, [(A, BitMap64([0, 5]))])
    blob = frame(bytes(bitmap))
    storage.delete_many([LOCATION])
    storage.create(LOCATION, b"PFA1" + blob)
    with pytest.raises(InvalidTableError, match="cannot be read"):
        read_deletion_vector(storage, msgspec.structs.replace(file, content_size_in_bytes=len(blob)))


@given(st.binary(max_size=80))
def test_no_bytes_crash_the_reader(data: bytes):
    storage = MemoryStorage()
    (file,) = write_deletion_vectors(storage, LOCATION, [(A, BitMap64([0, 5]))])
    blob = frame(data)
    storage.delete_many([LOCATION])
    storage.create(LOCATION, b"PFA1" + blob)
    try:
        positions = read_deletion_vector(storage, msgspec.structs.replace(file, content_size_in_bytes=len(blob)))
    except InvalidTableError:
        return
    assert len(positions) == 2
