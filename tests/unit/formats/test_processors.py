import os

import pytest

from icekeep.formats.machine import processors_count

OWN = len(os.sched_getaffinity(0))


def system(root, groups, files):
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text("\n".join(groups))
    for path, text in files.items():
        file = root / "sys/fs/cgroup" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return root


@pytest.mark.parametrize(
    ("groups", "files", "count"),
    [
        ([], {}, 64),
        (["0::/pod"], {"pod/cpu.max": "150000 100000\n"}, 2),
        (["0::/pod/x"], {"pod/x/cpu.max": "max 100000", "pod/cpu.max": "400000 100000"}, 4),
        (["0::/elsewhere"], {"cpu.max": "50000 100000"}, 1),
        (["0::/pod"], {"pod/cpu.max": "max 100000"}, 64),
        (["0::/pod"], {"pod/cpu.max": "99900000 100000"}, 64),
        (["0::/pod"], {"pod/cpu.max": "nonsense"}, 64),
        (["4:cpu,cpuacct:/c"], {"cpu/c/cpu.cfs_quota_us": "300000", "cpu/c/cpu.cfs_period_us": "100000"}, 3),
        (["4:cpu:/c"], {"cpu/c/cpu.cfs_quota_us": "-1", "cpu/c/cpu.cfs_period_us": "100000"}, 64),
        (["4:cpu:/c"], {"cpu/c/cpu.cfs_quota_us": "300000"}, 64),
        (["4:memory:/c"], {"cpu/c/cpu.cfs_quota_us": "300000", "cpu/c/cpu.cfs_period_us": "100000"}, 64),
    ],
)
def test_a_container_has_as_many_as_it_is_given_time_of(tmp_path, monkeypatch, groups, files, count):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(64))
    assert processors_count(system(tmp_path, groups, files)) == count


def test_a_system_that_tells_nothing_has_all_that_the_process_may_run_on(tmp_path):
    assert processors_count(tmp_path / "none") == OWN
