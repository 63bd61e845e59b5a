from icekeep.maintenance.compact.options import RATES_BYTES_A_SECOND, CompactionEstimate, RewriteMethod, Work, estimate

MIB = 1024 * 1024


def estimated(*works: Work, slots: int = 2) -> CompactionEstimate:
    return estimate(works, slots=slots, groups_count=1, files_count=10, new_files_count=2, delete_bytes=7)


def test_nothing_to_do_costs_nothing_but_the_look():
    assert (
        estimate([], slots=2, groups_count=0, files_count=0, new_files_count=0, delete_bytes=0) == CompactionEstimate()
    )


def test_bytes_are_read_once_and_written_once_with_the_deletes_beside_them():
    found = estimated(Work(RewriteMethod.REENCODE, 100 * MIB, 2), Work(RewriteMethod.STITCH, 50 * MIB, 1))
    assert (found.read_bytes, found.written_bytes, found.requests_count) == (150 * MIB + 7, 150 * MIB, 12)


def test_every_method_that_does_more_costs_more():
    costs = [estimated(Work(method, 1000 * MIB, 4)).cpu_ms for method in RewriteMethod]
    assert costs == sorted(costs)
    assert costs[1] == 1000 * MIB * 1000 // RATES_BYTES_A_SECOND[RewriteMethod.REENCODE] + 4 * 60


def test_slots_divide_the_time_as_far_as_there_are_tasks_for_them():
    work = Work(RewriteMethod.REENCODE, 900 * MIB, 3)
    one, three, many = (estimated(work, slots=slots) for slots in (1, 3, 30))
    assert one.cpu_ms == three.cpu_ms == many.cpu_ms
    assert three.elapsed_ms == many.elapsed_ms == one.cpu_ms // 3 + 120
    assert one.elapsed_ms == one.cpu_ms + 120
