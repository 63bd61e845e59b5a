"""What every storage must do, and what every object store; each backend's tests inherit a class and say where its files are."""

import pickle
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from contracts.directories_contract import DirectoriesContract
from icekeep.errors import InvalidTableError, MissingFileError, UnsupportedError, UsageError
from icekeep.formats.deletes.read import write_position_deletes
from icekeep.operations.doctor.driver import Notes
from icekeep.operations.doctor.places import StorePlace, look_at_store
from icekeep.runtime import SYSTEM
from icekeep.storage.base import DeleteStatus, ListingShare, MoveStatus, Storage
from icekeep.storage.objects.storage import ObjectStorage
from kit.storage import contents


class StorageContract:
    """Inherit and define the two fixtures `storage` and `root` (a location below which nothing is yet).

    `tells_missing`: whether deleting what is not there is told from deleting what is.
    """

    tells_missing = True

    @pytest.fixture
    def storage(self) -> Storage:
        raise NotImplementedError

    @pytest.fixture
    def root(self) -> str:
        raise NotImplementedError

    def test_what_is_written_is_read(self, storage, root):
        with storage.write(f"{root}/a/b/file.bin") as stream:
            stream.write(b"one")
            stream.write(b"two")
        assert storage.read(f"{root}/a/b/file.bin") == b"onetwo"

    def test_a_stream_that_its_user_closed_is_complete(self, storage, root):
        with storage.write(f"{root}/file.bin") as stream:
            stream.write(b"data")
            stream.close()
        assert storage.read(f"{root}/file.bin") == b"data"

    def test_an_empty_file_is_a_file(self, storage, root):
        with storage.write(f"{root}/empty"):
            pass
        assert storage.read(f"{root}/empty", 0) == b""

    @pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, GeneratorExit, MissingFileError])
    def test_raising_write_leaves_nothing_and_keeps_its_error(self, storage, root, error):
        failure = error("stop")

        def write_half() -> None:
            with storage.write(f"{root}/half") as stream:
                stream.write(b"x" * 100_000)
                raise failure

        with pytest.raises(error) as raised:
            write_half()
        assert raised.value is failure
        assert storage.head(f"{root}/half") is None

    def test_a_name_that_failed_once_can_be_written_again(self, storage, root):
        def fail() -> None:
            with storage.write(f"{root}/file"):
                raise RuntimeError

        with pytest.raises(RuntimeError):
            fail()
        storage.create(f"{root}/file", b"second")
        assert storage.read(f"{root}/file") == b"second"

    def test_a_write_never_replaces_a_file(self, storage, root):
        storage.create(f"{root}/file", b"first")

        def write_again() -> None:
            with storage.write(f"{root}/file") as stream:
                stream.write(b"second")

        with pytest.raises(FileExistsError):
            write_again()
        assert storage.read(f"{root}/file") == b"first"

    @pytest.mark.parametrize("file_format", ["PARQUET", "ORC", "AVRO"])
    def test_a_writer_whose_name_is_taken_leaves_what_has_it(self, storage, root, file_format):
        storage.create(f"{root}/file", b"another writer's")
        with pytest.raises(FileExistsError):
            write_position_deletes(storage, f"{root}/file", file_format, [("s3://b/data", 1)], spec_id=0)
        assert contents(storage, root) == {"file": b"another writer's"}

    def test_create_never_replaces_a_file_even_by_the_same_bytes(self, storage, root):
        storage.create(f"{root}/dir/file", b"first")
        with pytest.raises(FileExistsError):
            storage.create(f"{root}/dir/file", b"first")
        with pytest.raises(FileExistsError):
            storage.create(f"{root}/dir/file", b"second")
        assert contents(storage, root) == {"dir/file": b"first"}

    def test_exactly_one_concurrent_create_of_name_wins(self, storage, root):
        """The bytes of the winner stay as it wrote them."""
        barrier = threading.Barrier(8)
        won: list[bytes] = []

        def create(data: bytes) -> None:
            for round_number in range(20):
                barrier.wait()
                try:
                    storage.create(f"{root}/{round_number}", data)
                except FileExistsError:
                    continue
                won.append(b"%d:%b" % (round_number, data))

        threads = [threading.Thread(target=create, args=(b"writer %d" % n,)) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(won) == sorted(b"%b:%b" % (k.encode(), v) for k, v in contents(storage, root).items())
        assert len(won) == 20

    def test_a_missing_file_cannot_be_read_or_opened(self, storage, root):
        for use in (storage.read, storage.open):
            with pytest.raises(MissingFileError, match=f"'{root}/none': there is no such file"):
                use(f"{root}/none")

    def test_a_file_of_another_length_than_metadata_says_is_refused(self, storage, root):
        storage.create(f"{root}/file", b"12345")
        assert storage.read(f"{root}/file", 5) == b"12345"
        for length in (0, 4, 6):
            with pytest.raises(InvalidTableError, match=f"is 5 bytes long where metadata says {length}"):
                storage.read(f"{root}/file", length)

    def test_an_open_file_can_be_read_from_any_position(self, storage, root):
        storage.create(f"{root}/file", bytes(range(256)))
        with storage.open(f"{root}/file") as stream:
            assert stream.seekable()
            stream.seek(-6, 2)
            assert stream.read() == bytes(range(250, 256))
            stream.seek(10)
            assert stream.read(3) == bytes([10, 11, 12])

    def test_head_gives_size_and_time_and_none_without_file(self, storage, root):
        storage.create(f"{root}/dir/first", b"123")
        storage.create(f"{root}/dir/second", b"")
        first, second = storage.head(f"{root}/dir/first"), storage.head(f"{root}/dir/second")
        assert (first.location, first.size_bytes, second.size_bytes) == (f"{root}/dir/first", 3, 0)
        assert 1_700_000_000_000 < first.modified_ms <= second.modified_ms
        assert storage.head(f"{root}/dir") is None
        assert storage.head(f"{root}/dir/first/below") is None
        assert storage.head(f"{root}/none") is None

    def test_a_moved_file_has_only_its_new_name(self, storage, root):
        storage.create(f"{root}/old/file", b"data")
        storage.move(f"{root}/old/file", f"{root}/new/dir/file")
        assert contents(storage, root) == {"new/dir/file": b"data"}

    def test_a_move_never_replaces_a_file(self, storage, root):
        storage.create(f"{root}/a", b"a")
        storage.create(f"{root}/b", b"b")
        with pytest.raises(FileExistsError):
            storage.move(f"{root}/a", f"{root}/b")
        with pytest.raises(FileExistsError):
            storage.move(f"{root}/a", f"{root}/./a")
        with pytest.raises(MissingFileError):
            storage.move(f"{root}/none", f"{root}/c")
        assert contents(storage, root) == {"a": b"a", "b": b"b"}

    def test_moving_many_answers_each_in_order_and_never_raises(self, storage, root):
        for name in ("a", "b", "c", "dir/d", "taken"):
            storage.create(f"{root}/{name}", name.encode())
        moves = [
            (f"{root}/b", f"{root}/new/b"),
            (f"{root}/none", f"{root}/new/none"),
            (f"{root}/a", f"{root}/taken"),
            ("elsewhere://x/y", f"{root}/new/y"),
            (f"{root}/c", "relative"),
            (f"{root}/c", "/nul\0"),
            (f"{root}/dir/d", f"{root}/new/dir/d"),
            (f"{root}/b", f"{root}/new/again"),
            (f"{root}/a", f"{root}/a"),
        ]
        outcomes = storage.move_many(iter(moves))
        assert [o.source for o in outcomes] == [source for source, _ in moves]
        moved, missing, taken, failed = MoveStatus.MOVED, MoveStatus.MISSING, MoveStatus.TAKEN, MoveStatus.FAILED
        statuses = [o.status for o in outcomes]
        # No move leads here from a store that is not served.
        assert statuses.pop(3) in (MoveStatus.IMPOSSIBLE, failed)
        assert statuses == [moved, missing, taken, failed, failed, moved, missing, taken]
        assert [bool(o.reason) for o in outcomes] == [o.status in (MoveStatus.IMPOSSIBLE, failed) for o in outcomes]
        assert contents(storage, root) == {
            "a": b"a",
            "c": b"c",
            "taken": b"taken",
            "new/b": b"b",
            "new/dir/d": b"dir/d",
        }

    def test_moving_many_again_changes_nothing(self, storage, root):
        moves = [(f"{root}/t/{number}", f"{root}/trash/{number % 3}/{number}") for number in range(9)]
        for source, _ in moves:
            storage.create(source, source.encode())
        assert {o.status for o in storage.move_many(moves)} == {MoveStatus.MOVED}
        moved = contents(storage, root)
        assert {o.status for o in storage.move_many(moves)} == {MoveStatus.MISSING}
        assert contents(storage, root) == moved
        assert sorted(moved.values()) == sorted(source.encode() for source, _ in moves)

    def test_of_two_files_that_are_moved_to_one_name_one_stays(self, storage, root):
        for name in ("a", "b"):
            storage.create(f"{root}/{name}", name.encode())
        outcomes = storage.move_many([(f"{root}/{name}", f"{root}/c") for name in ("a", "b")])
        assert sorted(o.status.value for o in outcomes) == ["moved", "taken"]
        assert sorted(contents(storage, root).values()) == [b"a", b"b"]

    def test_moving_nothing_answers_nothing(self, storage, root):
        assert storage.move_many([]) == []

    def test_deleting_answers_each_key_in_order_and_never_raises(self, storage, root):
        for name in ("a", "b", "dir/c"):
            storage.create(f"{root}/{name}", b"")
        keys = [f"{root}/b", f"{root}/none", "elsewhere://x/y", "relative", "/nul\0", f"{root}/dir/c", f"{root}/b"]
        outcomes = storage.delete_many(iter(keys))
        deleted, failed = DeleteStatus.DELETED, DeleteStatus.FAILED
        missing = DeleteStatus.MISSING if self.tells_missing else deleted
        assert [o.location for o in outcomes] == keys
        statuses = [o.status for o in outcomes]
        # Of a name that is given twice a store that is asked once says the same twice.
        assert statuses.pop() in (deleted, missing)
        assert statuses == [deleted, missing, failed, failed, failed, deleted]
        assert [bool(o.reason) for o in outcomes] == [False, False, True, True, True, False, False]
        assert set(contents(storage, root)) == {"a"}

    def test_deleting_nothing_answers_nothing(self, storage, root):
        assert storage.delete_many([]) == []

    def test_a_directory_is_never_deleted(self, storage, root):
        storage.create(f"{root}/dir/file", b"")
        (outcome,) = storage.delete_many([f"{root}/dir"])
        assert outcome.status is not DeleteStatus.DELETED or not self.tells_missing
        assert set(contents(storage, root)) == {"dir/file"}

    def test_listing_is_recursive_and_skips_siblings(self, storage, root):
        names = {"t/a", "t/b/c", "t/b/d/e/f", "t/.icekeep/plans/p", "t/_hidden"}
        for name in (*names, "t2/a", "ta"):
            storage.create(f"{root}/{name}", name.encode())
        for prefix in (f"{root}/t", f"{root}/t/"):
            listed = list(storage.list(prefix))
            assert {info.location for info in listed} == {f"{root}/{name}" for name in names}
            assert all(info.size_bytes == len(info.location) - len(root) - 1 for info in listed)
            for info in listed:
                head = storage.head(info.location)
                assert (head.location, head.size_bytes) == (info.location, info.size_bytes)
                # A look at an object has its time in whole seconds, a listing may have it in finer parts.
                assert head.modified_ms in (info.modified_ms, info.modified_ms // 1000 * 1000)

    @pytest.mark.parametrize("count", [0, 1, 2, 3, 8, 100])
    def test_shares_of_a_listing_hold_each_file_once(self, storage, root, count):
        names = {"a", "b/c", "b/d/e/f", ".icekeep/plans/p", "x=1/y=2/z", *(f"x={n}/{n}" for n in range(5))}
        for name in (*names, "../t2/a", "../ta"):
            storage.create(f"{root}/t/{name}".replace("t/../", ""), name.encode())
        for prefix in (f"{root}/t", f"{root}/t/"):
            shares = pickle.loads(pickle.dumps(storage.shares(prefix, count)))
            listed = [info for share in shares for info in storage.list_share(share)]
            assert sorted(info.location for info in listed) == sorted(f"{root}/t/{name}" for name in names)
            assert {info.location: info for info in listed} == {info.location: info for info in storage.list(prefix)}

    def test_shares_of_what_is_no_directory_hold_nothing(self, storage, root):
        storage.create(f"{root}/file", b"")
        for location in (f"{root}/none", f"{root}/file"):
            assert [info for share in storage.shares(location, 4) for info in storage.list_share(share)] == []

    def test_shallow_share_lists_direct_files_only(self, storage, root):
        for name in ("t/a", "t/b", "t/c/d"):
            storage.create(f"{root}/{name}", b"1")
        listed = storage.list_share(ListingShare(f"{root}/t", is_deep=False))
        assert {info.location for info in listed} == {f"{root}/t/a", f"{root}/t/b"}

    def test_a_share_of_names_that_begin_alike_has_them_all(self, storage, root):
        names = {"v1", "v", "v\u00e9", "v2/x", "v2/y/z", "u9", "w", "V1", "vv", "sub/v3"}
        for name in names:
            storage.create(f"{root}/t/{name}", b"1")
        storage.create(f"{root}/t2/v1", b"1")
        for is_deep in (True, False):
            share = ListingShare(f"{root}/t", is_deep=is_deep, starts_with="v")
            listed = [info.location.removeprefix(f"{root}/t/") for info in storage.list_share(share)]
            right = {name for name in names if is_deep or "/" not in name}
            assert len(listed) == len(set(listed))
            assert {name for name in right if name.startswith("v") and name != "v"} <= set(listed) <= right

    def test_listing_what_is_no_directory_finds_nothing(self, storage, root):
        storage.create(f"{root}/file", b"")
        assert list(storage.list(f"{root}/none")) == []
        assert list(storage.list(f"{root}/file")) == []

    @pytest.mark.parametrize(
        "name", [" ", "%2F", "e\u0301", "\n", "-rf", "~", "*", "a:b", "\\", "'", '"', "...", "\U0001f9ca"]
    )
    def test_any_name_is_taken_literally(self, storage, root, name):
        location = f"{root}/literal/{name}/x=a%2Fb%20?q#f"
        storage.create(location, name.encode())
        assert [info.location for info in storage.list(f"{root}/literal")] == [location]
        assert storage.read(location) == name.encode()
        assert [o.status for o in storage.delete_many([location])] == [DeleteStatus.DELETED]

    def test_locations_of_other_stores_are_refused(self, storage, root):
        other = "elsewhere://bucket/key"
        for use in (storage.open, storage.read, storage.head, storage.capabilities, lambda o: list(storage.list(o))):
            with pytest.raises(UnsupportedError, match="elsewhere://bucket/key"):
                use(other)
        with pytest.raises(UnsupportedError):
            list(storage.shares(other, 4))
        with pytest.raises(UnsupportedError):
            list(storage.list_share(ListingShare(other)))
        with pytest.raises(UnsupportedError):
            storage.create(other, b"")
        with pytest.raises(UnsupportedError):
            storage.write(other).__enter__()
        storage.create(f"{root}/file", b"")
        for source, target in ((other, f"{root}/x"), (f"{root}/file", other)):
            with pytest.raises(UnsupportedError):
                storage.move(source, target)

    def test_it_proves_what_it_can_do_and_leaves_no_trace(self, storage, root):
        storage.create(f"{root}/file", b"")
        for location in (root, f"{root}/not/there/yet"):
            capabilities = storage.capabilities(location)
            assert capabilities.exclusive_create
            assert capabilities.move
        assert set(contents(storage, root)) == {"file"}

    def test_it_travels_to_a_task(self, storage, root):
        storage.create(f"{root}/file", b"data")
        copy = pickle.loads(pickle.dumps(storage))
        assert copy.read(f"{root}/file") == b"data"


class ObjectStorageContract(StorageContract, DirectoriesContract):
    """Inherit and define the fixture `server`, and the others if `root` is to be elsewhere.

    A server has `new_root()`, a location in a bucket of its own; `properties()`, those of a catalog; and `names(root)`, sorted,
    as another client lists them.
    """

    tells_missing = False
    BUCKET = "bucket"
    KEEPS_VERSIONS = False
    MANY = 2500
    NAMES = (" ", "%2F", "e\u0301", "-rf", "~", "*", "a:b", "\\", "'", '"', "...", "\U0001f9ca", "+", "a&b=c")

    @pytest.fixture
    def server(self):
        raise NotImplementedError

    @pytest.fixture
    def storage(self, server):
        return ObjectStorage(server.properties(), SYSTEM)

    @pytest.fixture
    def root(self, server):
        return server.new_root()

    def test_a_move_never_replaces_a_file(self, storage, root):
        """As everywhere, but `./a` is a name of its own in an object store, and one that cannot be used."""
        storage.create(f"{root}/a", b"a")
        storage.create(f"{root}/b", b"b")
        for target in ("b", "a"):
            with pytest.raises(FileExistsError):
                storage.move(f"{root}/a", f"{root}/{target}")
        with pytest.raises(UnsupportedError, match="cannot be used in an object store"):
            storage.move(f"{root}/a", f"{root}/./a")
        with pytest.raises(MissingFileError):
            storage.move(f"{root}/none", f"{root}/c")
        assert contents(storage, root) == {"a": b"a", "b": b"b"}

    def test_any_name_is_taken_literally(self, server, storage, root):
        """As everywhere, but for control characters, and another client finds the same names."""
        for name in self.NAMES:
            location = f"{root}/{name}/x=a%2Fb%20?q#f"
            storage.create(location, name.encode())
            assert [info.location for info in storage.list(root)] == [location]
            assert storage.read(location) == name.encode()
            assert server.names(root) == [f"{name}/x=a%2Fb%20?q#f"]
            storage.move(location, f"{root}/moved/{name}")
            assert server.names(root) == [f"moved/{name}"]
            assert [o.status for o in storage.delete_many([f"{root}/moved/{name}"])] == [DeleteStatus.DELETED]
            assert server.names(root) == []

    def test_a_bucket_that_is_not_there_is_told(self, storage, root):
        """But to a look at an object, whose answer has no body."""
        location = f"{root.rpartition('/')[0]}-not-there/wh/a"
        uses = (
            storage.read,
            lambda o: storage.create(o, b""),
            lambda o: list(storage.list(o)),
            storage.child_names,
            storage.capabilities,
        )
        for use in uses:
            with pytest.raises(
                UsageError, match=rf"-not-there/wh/a': there is no such {self.BUCKET}; make it, or name"
            ):
                use(location)
        notes = Notes()
        look_at_store(notes, StorePlace(storage, location), SYSTEM)
        assert [(one.check, one.status) for one in notes.result(0).findings] == [("reached", "wrong")]

    def test_bytes_that_a_bucket_keeps_as_older_versions_are_told(self, storage, root):
        for name in "ab":
            storage.create(f"{root}/{name}", b"1")
        storage.read(f"{root}/a")
        outcomes = storage.delete_many([f"{root}/{name}" for name in "ab"])
        assert [one.is_kept_as_version for one in outcomes] == [self.KEEPS_VERSIONS] * 2

    def test_a_large_object_is_sent_in_parts(self, storage, root):
        data = bytes(range(256)) * (1 << 17)
        with storage.write(f"{root}/large") as stream:
            for start in range(0, len(data), 5_000_000):
                stream.write(data[start : start + 5_000_000])
        assert storage.read(f"{root}/large", len(data)) == data
        storage.move(f"{root}/large", f"{root}/moved")
        assert storage.head(f"{root}/moved").size_bytes == len(data)

    def test_more_objects_than_a_page_holds_are_listed_and_deleted(self, server, storage, root):
        with ThreadPoolExecutor(16) as threads:
            list(threads.map(lambda n: storage.create(f"{root}/t/x={n % 7}/é %2F+{n}", b""), range(self.MANY)))
        expected = {f"{root}/t/x={n % 7}/é %2F+{n}" for n in range(self.MANY)}
        listed = [info.location for info in storage.list(f"{root}/t")]
        shared = [info.location for share in storage.shares(f"{root}/t", 5) for info in storage.list_share(share)]
        assert len(listed) == len(shared) == self.MANY
        assert set(listed) == set(shared) == expected
        assert {o.status for o in storage.delete_many(listed)} == {DeleteStatus.DELETED}
        assert server.names(root) == []
