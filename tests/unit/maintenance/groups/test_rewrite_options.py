from operator import attrgetter
from types import SimpleNamespace

from icekeep.maintenance.rewrite.options import in_job_order


def test_equal_groups_stay_in_the_order_of_planning():
    groups = [SimpleNamespace(number=n, bytes=b, files=f) for n, (b, f) in enumerate([(5, 1), (9, 1), (5, 3)])]
    measures = attrgetter("bytes"), attrgetter("files")
    orders = ("none", "bytes-asc", "bytes-desc", "files-asc", "files-desc")
    numbers = {order: [one.number for one in in_job_order(groups, order, *measures)] for order in orders}
    assert numbers == {
        "none": [0, 1, 2],
        "bytes-asc": [0, 2, 1],
        "bytes-desc": [1, 0, 2],
        "files-asc": [0, 1, 2],
        "files-desc": [2, 0, 1],
    }
