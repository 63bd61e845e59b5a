import os
import pickle
import signal
import socket

import obstore
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from contracts.storage_contract import ObjectStorageContract
from icekeep.errors import (
    IcekeepError,
    InvalidTableError,
    MissingFileError,
    OutcomeUnknownError,
    UnavailableError,
    UnsupportedError,
    UsageError,
)
from icekeep.runtime import SYSTEM
from icekeep.storage.base import Capabilities, DeleteStatus, MoveStatus
from icekeep.storage.objects.requests import PART_BYTES
from icekeep.storage.objects.storage import ObjectStorage
from kit.cases import for_each
from kit.object_store import KEYS, CutAnswers, GoogleStore
from kit.runtime import FakeRuntime
from kit.small_servers import TcpProxy
from kit.storage import contents


@pytest.fixture
def bucket(store):
    return store.new_bucket()


@pytest.fixture
def root(bucket):
    return f"s3://{bucket}/wh"


@pytest.fixture
def storage(store):
    return ObjectStorage(store.properties(), SYSTEM)


class TestObjectStorage(ObjectStorageContract):
    MANY = 1100

    @pytest.fixture
    def server(self, store):
        return store


# Names and buckets


@pytest.mark.parametrize("name", ["a/", "a//b/", "a/./b", "a//../b", "../a", ".", "a\nb", "a\x7f", "\ud800", ""])
def test_name_that_client_would_change_is_refused(storage, bucket, store, name):
    storage.create(f"s3://{bucket}/a/b", b"")
    store.reset()
    location = f"s3://{bucket}/{name}"
    uses = (storage.open, storage.read, storage.head, lambda o: storage.create(o, b""))
    for use in (*uses, lambda o: storage.write(o).__enter__(), lambda o: storage.move(o, f"s3://{bucket}/c")):
        with pytest.raises(UnsupportedError, match="cannot be used in an object store"):
            use(location)
    assert [o.status for o in storage.delete_many([location])] == [DeleteStatus.FAILED]
    assert store.requests == []


def test_unaddressable_object_name_stops_listing(storage, root, store, bucket):
    """A listing that left it out would call itself complete."""
    storage.create(f"{root}/t/a", b"")
    store.put_many(bucket, ["wh/t/./b"])
    for use in (lambda: list(storage.list(f"{root}/t")), lambda: storage.child_names(f"{root}/t")):
        with pytest.raises(UnsupportedError, match="which cannot be addressed"):
            use()


def test_all_schemes_of_s3_lead_to_one_bucket(storage, bucket):
    storage.create(f"s3://{bucket}/a", b"data")
    assert storage.read(f"s3a://{bucket}/a") == storage.read(f"s3n://{bucket}/a") == b"data"
    storage.move(f"s3a://{bucket}/a", f"s3://{bucket}/b")
    assert [info.location for info in storage.list(f"s3n://{bucket}")] == [f"s3n://{bucket}/b"]


def test_a_move_to_another_bucket_is_refused(storage, root, store):
    storage.create(f"{root}/a", b"")
    with pytest.raises(UnsupportedError, match="not in the same bucket"):
        storage.move(f"{root}/a", f"s3://{store.new_bucket()}/a")


def test_trailing_slash_markers_are_directories(storage, root, store, bucket):
    for key in ("wh/t/", "wh/t/empty/", "wh/t/both/"):
        store.client.put_object(Bucket=bucket, Key=key, Body=b"")
    storage.create(f"{root}/t/both", b"")
    storage.create(f"{root}/t/file", b"")
    assert sorted(info.location for info in storage.list(f"{root}/t")) == [f"{root}/t/both", f"{root}/t/file"]
    assert storage.directory_exists(f"{root}/t/empty")
    assert list(storage.child_directories(f"{root}/t")) == ["both", "empty"]
    assert list(storage.child_names(f"{root}/t")) == ["both", "empty", "file"]
    with pytest.raises(UnsupportedError, match=r"another program keeps it by the object 'wh/t/empty/'"):
        storage.remove_directory(f"{root}/t/empty")


# Creating


def test_a_create_is_one_request_with_a_condition(storage, root, store):
    storage.create(f"{root}/file", b"x" * 6_000_000)
    assert [(r.path.split("/", 2)[2], r.condition) for r in store.sent("PUT")] == [("wh/file", "*")]
    assert [r.method for r in store.requests] == ["PUT"]


@pytest.mark.parametrize("lands", [True, False])
@pytest.mark.parametrize("status", [500, 502, 503, 504, 408, 418, None])
def test_unproved_answer_settled_by_look_and_resend(root, store, status, lands):
    if status is None:
        store.lose_answer("PUT", "/file", lands=lands)
    else:
        store.answer("PUT", "/file", status, "SlowDown", lands=lands)
    storage = ObjectStorage(store.properties(), FakeRuntime())
    storage.create(f"{root}/file", b"x")
    assert not store.is_waiting
    assert len(store.sent("PUT")) == (1 if lands else 2)
    assert contents(storage, root) == {"file": b"x"}


def test_a_store_that_is_throttled_for_minutes_is_waited_for(root, store):
    runtime = FakeRuntime()
    store.answer("PUT", "/file", 503, "SlowDown", times=20)
    storage = ObjectStorage(store.properties(), runtime)
    storage.create(f"{root}/file", b"x")
    assert (len(store.sent("PUT")), 120_000 < runtime.elapsed_ms < 150_000) == (21, True)


def test_a_store_that_never_answers_leaves_a_create_unknown(root, store):
    runtime = FakeRuntime()
    store.answer("PUT", "/file", 503, "SlowDown", times=1000)
    with pytest.raises(OutcomeUnknownError, match=f"cannot tell whether file '{root}/file' was created: ") as raised:
        ObjectStorage(store.properties(), runtime).create(f"{root}/file", b"x")
    assert "\n" not in str(raised.value)
    assert 300_000 < runtime.elapsed_ms < 320_000


def test_late_first_request_is_kept_out_by_second(root, store):
    """What was sent first is on its way still when what was sent second lands; then it meets that, and changes nothing."""
    storage = ObjectStorage(store.properties(), FakeRuntime())
    store.delay("PUT", "/file")
    storage.create(f"{root}/file", b"x")
    landed = store.client.head_object(Bucket=root.split("/")[2], Key="wh/file")
    assert store.deliver() == ["412 PRECONDITION FAILED"]
    assert store.client.head_object(Bucket=root.split("/")[2], Key="wh/file")["LastModified"] == landed["LastModified"]


def test_second_request_that_meets_first_has_created_object(root, store):
    storage = ObjectStorage(store.properties(), FakeRuntime())
    store.delay("PUT", "/file")
    store.before("PUT", "/file", store.deliver)
    storage.create(f"{root}/file", b"x")
    assert len(store.sent("PUT")) == 2
    assert contents(storage, root) == {"file": b"x"}


def test_a_name_that_another_took_after_a_lost_answer_is_taken(root, store, bucket):
    def be_faster() -> None:
        store.client.put_object(Bucket=bucket, Key="wh/file", Body=b"theirs")

    store.lose_answer("PUT", "/file", lands=False, first=be_faster)
    storage = ObjectStorage(store.properties(), FakeRuntime())
    with pytest.raises(FileExistsError):
        storage.create(f"{root}/file", b"x")
    assert contents(storage, root) == {"file": b"theirs"}


@pytest.mark.parametrize("status", [401, 403])
def test_a_refusal_after_a_lost_answer_proves_nothing(root, store, status):
    def refuse() -> None:
        store.answer("PUT", "/file", status, "AccessDenied")

    store.lose_answer("PUT", "/file", lands=False, first=refuse)
    with pytest.raises(OutcomeUnknownError, match=r"sent again, and .* the store denies access"):
        ObjectStorage(store.properties(), FakeRuntime()).create(f"{root}/file", b"x")


def test_an_abandoned_process_sends_nothing_again(root, store):
    runtime = FakeRuntime()
    runtime.abandoned = True
    store.lose_answer("PUT", "/file", lands=False)
    with pytest.raises(OutcomeUnknownError):
        ObjectStorage(store.properties(), runtime).create(f"{root}/file", b"x")
    assert len(store.sent("PUT")) == 1


@pytest.mark.parametrize(
    ("status", "code", "expected"),
    [
        (400, "ExpiredToken", UsageError),
        (400, "RequestTimeout", UnavailableError),
        (400, "AuthorizationHeaderMalformed", UsageError),
        (400, "KeyTooLongError", InvalidTableError),
        (301, "PermanentRedirect", UsageError),
        (401, "", UsageError),
        (403, "AccessDenied", UsageError),
        (404, "NoSuchBucket", UsageError),
        (404, "", UsageError),
        (429, "TooManyRequests", UnavailableError),
        (501, "NotImplemented", UnavailableError),
    ],
)
def test_refusal_proves_nothing_created(storage, root, store, status, code, expected):
    store.answer("PUT", "/file", status, code)
    with pytest.raises(IcekeepError, match=f"cannot create '{root}/file': ") as raised:
        storage.create(f"{root}/file", b"x")
    assert type(raised.value) is expected
    assert "\n" not in str(raised.value)
    assert [r.method for r in store.requests] == ["PUT"]


def test_a_store_that_nobody_can_connect_to_created_nothing(bucket, store):
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
    storage = ObjectStorage(store.properties(**{"s3.endpoint": f"http://127.0.0.1:{port}"}), SYSTEM)
    with pytest.raises(UnavailableError, match="no connection to the store can be made"):
        storage.create(f"s3://{bucket}/file", b"x")


@for_each("status", [404, 503])
def test_failed_token_request_proves_nothing_was_sent(store, monkeypatch, status):
    """With `gcs.no-auth` the client asks for a token all the same where it writes."""
    for name in ("GCE_METADATA_HOST", "GCE_METADATA_ROOT", "GCE_METADATA_IP"):
        monkeypatch.setenv(name, f"127.0.0.1:{store.port}")
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS", raising=False)
    store.reset()
    store.answer("GET", "/computeMetadata/", status, times=1000)
    runtime = FakeRuntime()
    storage = ObjectStorage({"gcs.service.host": store.endpoint, "gcs.no-auth": "true"}, runtime)
    with pytest.raises(
        UsageError, match="cannot create 'gs://bucket/k': no credentials are given, and this machine has none"
    ):
        storage.create("gs://bucket/k", b"")
    assert (runtime.elapsed_ms, {request.method for request in store.requests}) == (0, {"GET"})


@for_each("status", [401, 403])
def test_denied_list_or_delete_is_reported_for_any_code(storage, root, store, status):
    storage.create(f"{root}/{status}", b"")
    store.answer("GET", "list-type", status, "AuthorizationFailure")
    with pytest.raises(UsageError, match=r"cannot list .* the store denies access \(AuthorizationFailure\)"):
        list(storage.list(root))
    store.answer("POST", "?delete", status, "AuthorizationFailure", times=2)
    store.answer("DELETE", f"/wh/{status}", status, "AuthorizationFailure", times=2)
    (outcome,) = storage.delete_many([f"{root}/{status}"])
    assert "the store denies access (AuthorizationFailure)" in outcome.reason
    store.reset()


def test_create_with_answer_timeout_finds_its_object(bucket, store):
    proxy = TcpProxy(store.port)
    properties = {"s3.endpoint": f"http://127.0.0.1:{proxy.port}", "s3.request-timeout": "1"}
    proxy.swallow_answer(b"PUT /")
    ObjectStorage(store.properties(**properties), SYSTEM).create(f"s3://{bucket}/landed", b"x")
    assert not proxy.is_waiting
    assert store.keys(bucket) == ["landed"]
    proxy.close()


def test_a_create_whose_own_object_is_in_the_way_has_created_it(storage, root, store):
    """What a proxy does that repeats a request: the answer is 412, about our own object."""
    store.repeat("PUT", "/file")
    storage.create(f"{root}/file", b"x")
    assert not store.is_waiting
    assert contents(storage, root) == {"file": b"x"}


def test_equal_bytes_of_another_writer_are_not_ours(storage, root, store, bucket):
    store.before("PUT", "/file", lambda: store.client.put_object(Bucket=bucket, Key="wh/file", Body=b"x"))
    with pytest.raises(FileExistsError):
        storage.create(f"{root}/file", b"x")
    assert not store.is_waiting


def test_a_create_that_collided_is_sent_again(root, store):
    runtime = FakeRuntime(chance=1.0)
    store.answer("PUT", "/file", 409, "ConditionalRequestConflict", times=2)
    ObjectStorage(store.properties(), runtime).create(f"{root}/file", b"x")
    assert len(store.sent("PUT")) == 3
    assert runtime.sleeps_ms == [50, 100]


def test_create_that_collided_finds_name_taken(storage, root, store, bucket):
    storage.create(f"{root}/file", b"first")
    store.answer("PUT", "/file", 409, "ConditionalRequestConflict")
    with pytest.raises(FileExistsError):
        storage.create(f"{root}/file", b"second")
    assert storage.read(f"{root}/file") == b"first"


def test_a_create_that_collides_without_end_is_unknown(root, store):
    store.answer("PUT", "/file", 409, "ConditionalRequestConflict", times=100)
    with pytest.raises(OutcomeUnknownError, match="other writes of the name went on and on"):
        ObjectStorage(store.properties(), FakeRuntime()).create(f"{root}/file", b"x")
    assert 30 < len(store.sent("PUT")) < 50


def test_a_name_that_was_taken_and_then_was_not_is_unknown(storage, root, store):
    """Ours may have been there, and been removed."""
    store.answer("PUT", "/file", 412, "PreconditionFailed")
    with pytest.raises(OutcomeUnknownError, match="the name was taken, and then it was not"):
        storage.create(f"{root}/file", b"x")


def test_a_taken_name_that_cannot_be_looked_at_is_unknown(storage, root, store):
    storage.create(f"{root}/file", b"first")
    store.answer("HEAD", "/file", 403, times=100)
    with pytest.raises(OutcomeUnknownError):
        storage.create(f"{root}/file", b"second")


@pytest.mark.parametrize(
    "key", ["- Server returned non-2xx status code: 403", "a already exists: Error performing 409"]
)
def test_a_name_that_reads_like_an_answer_is_not_taken_for_one(root, store, key):
    storage = ObjectStorage(store.properties(), FakeRuntime())
    store.answer("PUT", key, 412)
    with pytest.raises(OutcomeUnknownError, match="was taken, and then it was not"):
        storage.create(f"{root}/{key}", b"x")
    store.answer("PUT", key, 500, times=100)
    with pytest.raises(OutcomeUnknownError, match="the store answers 500"):
        storage.create(f"{root}/{key}", b"x")


# Writing and reading streams


def test_a_small_file_is_sent_again_when_its_answer_is_lost(storage, root, store):
    for lands in (True, False):
        store.lose_answer("PUT", f"/file-{lands}", lands=lands)
        with storage.write(f"{root}/file-{lands}") as stream:
            stream.write(b"x")
    assert not store.is_waiting
    assert contents(storage, root) == {"file-True": b"x", "file-False": b"x"}


def test_unsent_small_file_is_unavailable_not_unknown(storage, root, store):
    """No commit stands on it, and nobody reads a file that no commit names."""
    store.answer("PUT", "/file", 400, "RequestTimeout")
    said = f"cannot write '{root}/file': the store answers 400"
    with pytest.raises(UnavailableError, match=said), storage.write(f"{root}/file") as stream:
        stream.write(b"x")


def test_unseen_small_file_is_unavailable(storage, root, store):
    store.answer("PUT", "/file", 400, "RequestTimeout", lands=True)
    store.answer("HEAD", "/file", 400, times=100)
    with pytest.raises(UnavailableError), storage.write(f"{root}/file") as stream:
        stream.write(b"x")


@pytest.mark.parametrize("is_anothers", [True, False])
def test_failed_write_is_removed_only_with_own_stamp(storage, root, store, bucket, is_anothers):
    if is_anothers:
        store.client.put_object(Bucket=bucket, Key="wh/file", Body=b"other")
    else:
        store.answer("PUT", "/file", 400, "RequestTimeout", lands=True)
    store.answer("HEAD", "/file", 400)
    with pytest.raises(IcekeepError), storage.write(f"{root}/file") as stream:
        stream.write(b"x")
    assert not store.is_waiting
    assert contents(storage, root) == ({"file": b"other"} if is_anothers else {})


LARGE = bytes(range(256)) * (PART_BYTES // 256) + b"more"


def write_large(storage, location, then=lambda: None):
    with storage.write(location) as stream:
        for start in range(0, len(LARGE), 3_000_000):
            stream.write(memoryview(LARGE)[start : start + 3_000_000])
        assert stream.tell() == len(LARGE)
        then()


def uploads(store, bucket):
    return store.client.list_multipart_uploads(Bucket=bucket).get("Uploads", [])


def test_a_large_file_is_sent_in_parts(storage, root, store, bucket):
    write_large(storage, f"{root}/file")
    assert storage.read(f"{root}/file", len(LARGE)) == LARGE
    assert store.sent("PUT", "uploadId")
    assert uploads(store, bucket) == []


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_a_large_file_whose_writing_raises_leaves_no_parts(storage, root, store, bucket, error):
    def stop():
        raise error

    with pytest.raises(error):
        write_large(storage, f"{root}/file", stop)
    assert store.sent("DELETE", "uploadId")
    assert uploads(store, bucket) == []
    assert store.keys(bucket) == []


@pytest.mark.parametrize("is_before", [True, False])
def test_large_file_replaces_nothing(storage, root, store, bucket, is_before):
    def other_writes() -> None:
        store.client.put_object(Bucket=bucket, Key="wh/file", Body=b"other")

    if is_before:
        other_writes()
    with pytest.raises(FileExistsError):
        write_large(storage, f"{root}/file", lambda: None if is_before else other_writes())
    assert bool(store.sent("POST", "uploads")) is not is_before
    assert storage.read(f"{root}/file") == b"other"
    assert uploads(store, bucket) == []


def test_large_file_is_complete_when_last_answer_is_lost(storage, root, store):
    store.answer("POST", "uploadId", 403, "AccessDenied", lands=True)
    write_large(storage, f"{root}/file")
    assert not store.is_waiting
    assert storage.read(f"{root}/file") == LARGE


def test_a_large_file_whose_completion_fails_is_not_there(storage, root, store, bucket):
    store.answer("POST", "uploadId", 403, "AccessDenied")
    with pytest.raises(UsageError, match=r"cannot write .*: the store denies access \(AccessDenied\)"):
        write_large(storage, f"{root}/file")
    assert store.keys(bucket) == []


def test_only_what_is_asked_for_is_read(storage, root, store):
    write_large(storage, f"{root}/file")
    store.reset()
    with storage.open(f"{root}/file") as stream:
        stream.seek(-4, os.SEEK_END)
        assert stream.read() == b"more"
        assert stream.read(1) == b""
        stream.seek(1000)
        assert stream.read(10) == LARGE[1000:1010]
    assert [r.range for r in store.sent("GET")] == [f"bytes={PART_BYTES}-{PART_BYTES + 3}", "bytes=1000-1049575"]
    with storage.open(f"{root}/file") as stream:
        assert stream.read() == LARGE


def test_what_comes_of_a_file_must_be_all_of_it(storage, root, monkeypatch):
    storage.create(f"{root}/file", b"12345")
    whole = obstore.get

    class Cut:
        def __init__(self, answer):
            self.meta, self._answer = answer.meta, answer

        def bytes(self):
            return bytes(self._answer.bytes())[:4]

    monkeypatch.setattr(obstore, "get", lambda *asked, **named: Cut(whole(*asked, **named)))
    for length in (None, 4, 5):
        with pytest.raises(UnavailableError, match="4 bytes came, and the store says that it has 5"):
            storage.read(f"{root}/file", length)


@pytest.mark.parametrize("length", [None, 60, 100])
def test_an_answer_that_ends_early_is_no_file(length):
    """Not even one that is as long as metadata says."""
    answers = CutAnswers(b"x" * 60, told_bytes=100)
    storage = ObjectStorage({"s3.endpoint": answers.endpoint, **KEYS}, SYSTEM)
    with pytest.raises(UnavailableError, match="cannot read 's3://b/file'"):
        storage.read("s3://b/file", length)
    answers.close()


def test_a_file_that_vanishes_while_it_is_read_is_missing(storage, root):
    storage.create(f"{root}/file", b"x")
    with storage.open(f"{root}/file") as stream:
        storage.delete_many([f"{root}/file"])
        with pytest.raises(MissingFileError):
            stream.read()


def test_parquet_is_written_to_a_stream_and_read_from_one(storage, root):
    table = pa.table({"id": range(1000), "name": [f"name {n}" for n in range(1000)]})
    with storage.write(f"{root}/file.parquet") as stream:
        pq.write_table(table, stream)
    with storage.open(f"{root}/file.parquet") as stream:
        assert pq.read_table(stream) == table


# Moving and deleting


def test_a_move_that_stopped_half_way_can_be_repeated(storage, root):
    storage.create(f"{root}/a", b"data")
    storage.create(f"{root}/b", b"data")
    storage.move(f"{root}/a", f"{root}/b")
    assert contents(storage, root) == {"b": b"data"}


def test_a_move_whose_answer_is_lost_can_be_repeated(storage, root, store):
    storage.create(f"{root}/a", b"data")
    storage.capabilities(root)
    store.lose_answer("POST", "uploadId", lands=True)
    with pytest.raises(UnavailableError):
        storage.move(f"{root}/a", f"{root}/b")
    storage.move(f"{root}/a", f"{root}/b")
    assert contents(storage, root) == {"b": b"data"}


@pytest.mark.parametrize(("count", "requests"), [(1, 1), (1000, 1), (1001, 2), (2500, 3)])
def test_thousand_files_are_deleted_by_one_request(storage, root, store, bucket, count, requests):
    locations = [f"{root}/{number}" for number in range(count)]
    for location in {locations[0], locations[-1]}:
        storage.create(location, b"")
    store.requests.clear()
    outcomes = storage.delete_many(locations)
    assert [(o.location, o.status) for o in outcomes] == [(location, DeleteStatus.DELETED) for location in locations]
    assert [r.method for r in store.requests] == ["POST"] * requests
    assert store.keys(bucket) == []


def test_files_with_odd_names_are_deleted(storage, root, store, bucket):
    """An answer or a request in XML, with one of these left as it is, would be about other names."""
    names = ["a&b", "<Key>", "]]>", "'", '"', "&amp;", "%26", " a ", "+", "\u00e9", "e\u0301", "\U0001f9ca", "\u2028"]
    for name in (*names, "amp;", "&"):
        storage.create(f"{root}/{name}", b"")
    outcomes = storage.delete_many([f"{root}/{name}" for name in (*names, "line\nbreak")])
    assert [o.status for o in outcomes] == [DeleteStatus.DELETED] * len(names) + [DeleteStatus.FAILED]
    assert "no control character" in outcomes[-1].reason
    assert sorted(store.keys(bucket)) == ["wh/&", "wh/amp;"]


def test_a_file_that_is_asked_for_twice_is_sent_once(storage, root, store):
    """Two schemes of one bucket, and one name."""
    storage.create(f"{root}/a", b"")
    locations = [f"{root}/a", f"{root}/a", f"{root.replace('s3:', 's3a:')}/a"]
    outcomes = storage.delete_many(locations)
    assert [(o.location, o.status) for o in outcomes] == [(location, DeleteStatus.DELETED) for location in locations]
    assert len(store.sent("POST")) == 1


@pytest.mark.parametrize("status", [400, 404, 405, 501])
def test_store_without_bulk_delete_deletes_one_by_one(storage, root, store, status):
    for name in "abc":
        storage.create(f"{root}/{name}", b"")
    store.answer("POST", "delete", status, "NotImplemented", times=100)
    store.answer("DELETE", "/wh/b", 403, "AccessDenied")
    outcomes = storage.delete_many([f"{root}/{name}" for name in "abc"])
    assert [o.status for o in outcomes] == [DeleteStatus.DELETED, DeleteStatus.FAILED, DeleteStatus.DELETED]
    assert "AccessDenied" in outcomes[1].reason
    assert set(contents(storage, root)) == {"b"}


def test_file_that_bulk_delete_failed_on_is_reported_alone(storage, root, store):
    """The client tells the first failure only, so the others are asked for once more."""
    for name in ("a", "b&c", "d"):
        storage.create(f"{root}/{name}", b"")
    failures = "".join(
        f"<Error><Key>wh/{key}</Key><Code>AccessDenied</Code><Message>no</Message></Error>" for key in ("b&amp;c", "d")
    )
    store.answer("POST", "delete", 200, body=f"<DeleteResult>{failures}</DeleteResult>")
    store.answer("DELETE", "/wh/b&c", 403, "AccessDenied")
    outcomes = storage.delete_many([f"{root}/{name}" for name in ("a", "b&c", "d")])
    assert [o.status for o in outcomes] == [DeleteStatus.DELETED, DeleteStatus.FAILED, DeleteStatus.DELETED]
    assert "AccessDenied" in outcomes[1].reason
    assert set(contents(storage, root)) == {"b&c"}


def test_unavailable_store_is_not_asked_for_each_file(storage, root, store):
    storage.create(f"{root}/1", b"")
    store.answer("POST", "delete", 503, "SlowDown", times=100)
    outcomes = storage.delete_many([f"{root}/{number}" for number in range(50)])
    assert {o.status for o in outcomes} == {DeleteStatus.FAILED}
    assert {o.reason.partition(": ")[2] for o in outcomes} == {"the store answers 503 (SlowDown)"}
    assert store.sent("DELETE") == []
    assert set(contents(storage, root)) == {"1"}


def test_google_tells_what_is_missing():
    """There is no request for many, and one for an object that is not there fails."""
    answers = GoogleStore({"b": {"wh/a", "wh/c"}})
    storage = ObjectStorage({"gcs.service.host": answers.endpoint, "gcs.oauth2.token": "t"}, SYSTEM)
    outcomes = storage.delete_many([f"gs://b/wh/{name}" for name in ("a", "none", "c")])
    answers.close()
    assert [o.status for o in outcomes] == [DeleteStatus.DELETED, DeleteStatus.MISSING, DeleteStatus.DELETED]
    assert answers.keys == {"b": set()}


def test_many_moves_are_copies_and_one_request_that_deletes(storage, root, store):
    moves = [(f"{root}/t/{number}", f"{root}/trash/{number}") for number in range(20)]
    for source, _ in moves:
        storage.create(source, source.encode())
    store.requests.clear()
    assert {o.status for o in storage.move_many(moves)} == {MoveStatus.MOVED}
    assert len(store.sent("POST", "?delete")) == 2  # what proved that the store moves, and the moves
    assert set(contents(storage, root)) == {f"trash/{number}" for number in range(20)}


def test_files_of_several_buckets_are_moved_and_deleted_at_once(storage, store):
    roots = [f"s3://{store.new_bucket()}/wh" for _ in range(3)]
    for root in roots:
        for name in "ab":
            storage.create(f"{root}/{name}", root.encode())
    outcomes = storage.move_many((f"{root}/{name}", f"{root}/trash/{name}") for name in "ab" for root in roots)
    assert [o.status for o in outcomes] == [MoveStatus.MOVED] * 6
    assert [contents(storage, root) for root in roots] == [
        {f"trash/{name}": root.encode() for name in "ab"} for root in roots
    ]
    storage.delete_many([f"{root}/trash/a" for root in roots])
    assert [set(contents(storage, root)) for root in roots] == [{"trash/b"}] * 3


def test_moves_finish_when_repeated(storage, root, store):
    moves = [(f"{root}/{name}", f"{root}/trash/{name}") for name in "ab"]
    for source, _ in moves:
        storage.create(source, source.encode())
    storage.capabilities(root)
    store.answer("POST", "?delete", 403, "AccessDenied")
    store.answer("DELETE", "/wh/a", 403, "AccessDenied")
    outcomes = storage.move_many(moves)
    assert [o.status for o in outcomes] == [MoveStatus.FAILED, MoveStatus.MOVED]
    assert "AccessDenied" in outcomes[0].reason
    assert set(contents(storage, root)) == {"a", "trash/a", "trash/b"}
    assert [o.status for o in storage.move_many(moves)] == [MoveStatus.MOVED, MoveStatus.MISSING]
    assert set(contents(storage, root)) == {"trash/a", "trash/b"}


def test_files_of_different_lengths_are_not_read_to_compare(storage, root, store):
    for name, data in (("a", b"one"), ("b", b"three")):
        storage.create(f"{root}/{name}", data)
    storage.capabilities(root)
    store.requests.clear()
    assert [o.status for o in storage.move_many([(f"{root}/a", f"{root}/b")])] == [MoveStatus.TAKEN]
    assert store.sent("GET") == []


def test_move_onto_other_bytes_of_same_length_changes_nothing(storage, root):
    for name, data in (("a", b"one"), ("b", b"two"), ("c", b"three")):
        storage.create(f"{root}/{name}", data)
    outcomes = storage.move_many([(f"{root}/a", f"{root}/b"), (f"{root}/b", f"{root}/c")])
    assert [o.status for o in outcomes] == [MoveStatus.TAKEN] * 2
    assert contents(storage, root) == {"a": b"one", "b": b"two", "c": b"three"}


# What a store can do


def test_it_is_proved_once_for_each_bucket(storage, root, store):
    assert storage.capabilities(f"{root}/a") == Capabilities(exclusive_create=True, move=True)
    asked = len(store.requests)
    assert storage.capabilities(f"{root.replace('s3:', 's3a:')}/b") == Capabilities(exclusive_create=True, move=True)
    assert len(store.requests) == asked


def test_a_store_that_ignores_conditions_is_not_proved(storage, root, store, bucket):
    store.ignores_conditions = True
    assert storage.capabilities(root) == Capabilities(exclusive_create=False, move=False)
    assert store.keys(bucket) == []
    storage.create(f"{root}/a", b"")
    with pytest.raises(UnsupportedError, match="cannot copy without replacing"):
        storage.move(f"{root}/a", f"{root}/b")


def test_a_store_that_does_not_know_conditions_is_not_proved(storage, root, store):
    store.answer("PUT", ".tmp", 501, "NotImplemented")
    assert storage.capabilities(root) == Capabilities(exclusive_create=False, move=False)


def test_store_without_conditional_copy_still_takes_commits(storage, root, store):
    store.answer("POST", "uploads", 501, "NotImplemented", times=100)
    assert storage.capabilities(root) == Capabilities(exclusive_create=True, move=False)


@pytest.mark.parametrize(("status", "expected"), [(403, UsageError), (503, UnavailableError)])
def test_failed_probe_neither_proves_nor_disproves_store(storage, root, store, status, expected):
    store.answer("PUT", ".tmp", status)
    with pytest.raises(expected, match=f"cannot write below '{root}'"):
        storage.capabilities(root)
    assert storage.capabilities(root).exclusive_create


# Secrets, travelling


def test_what_is_sent_is_encrypted_by_the_store_as_asked(store, root, bucket):
    storage = ObjectStorage(store.properties(**{"s3.sse.type": "kms", "s3.sse.key": "my-key"}), SYSTEM)
    storage.create(f"{root}/a", b"")
    head = store.client.head_object(Bucket=bucket, Key="wh/a")
    assert (head["ServerSideEncryption"], head["SSEKMSKeyId"]) == ("aws:kms", "my-key")


def test_nothing_that_it_says_shows_a_secret(store, root):
    storage = ObjectStorage(store.properties(), SYSTEM)
    storage.create(f"{root}/a", b"")
    store.answer("GET", "/a", 403, "AccessDenied")
    with pytest.raises(UsageError) as raised:
        storage.read(f"{root}/a")
    said = f"{storage!r} {raised.value!r} {raised.value.facts} {raised.value.__cause__!r}"
    assert KEYS["s3.secret-access-key"] not in said


def test_it_is_small_when_it_travels_and_keeps_what_it_proved(store, root):
    storage = ObjectStorage(store.properties(), SYSTEM)
    storage.capabilities(root)
    copy = pickle.loads(pickle.dumps(storage))
    asked = len(store.requests)
    assert copy.capabilities(root).exclusive_create
    assert len(store.requests) == asked
    assert len(pickle.dumps(storage)) < 800


def test_forked_process_is_refused(storage, root):
    storage.create(f"{root}/a", b"")
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        try:
            storage.read(f"{root}/a")
        except UnsupportedError as error:
            os._exit(7 if "start processes with 'spawn'" in error.message else 8)
        os._exit(9)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 7
