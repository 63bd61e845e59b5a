"""New files that nobody names and that cannot be removed are told of."""

from icekeep.events import Warned
from icekeep.maintenance.rewrite.run import discard_files
from icekeep.storage.base import DeleteOutcome, DeleteStatus


class Storage:
    def __init__(self, denied):
        self.denied = denied

    def delete_many(self, locations):
        return [
            DeleteOutcome(one, DeleteStatus.FAILED, "the store denies access")
            if one in self.denied
            else DeleteOutcome(one, DeleteStatus.DELETED)
            for one in sorted(locations)
        ]


class Heard(list):
    on = list.append


def test_files_that_cannot_be_removed_are_warned_of():
    heard = Heard()
    discard_files(Storage({"s3://b/2", "s3://b/3"}), ["s3://b/1", "s3://b/2", "s3://b/3", "s3://b/3"], heard)
    (warning,) = heard
    assert isinstance(warning, Warned)
    assert warning.message.startswith("2 new files")
    assert "'s3://b/2'" in warning.message
    assert "the store denies access" in warning.message


def test_nothing_is_said_of_files_that_are_gone():
    heard = Heard()
    discard_files(Storage(set()), ["s3://b/1"], heard)
    assert heard == []
