"""What a command's own session is told; tests/end_to_end/test_own_session.py has one."""

import resource

import pytest

from icekeep.formats import machine as address_space
from icekeep.planning.spark.own_session import are_workers_limited
from icekeep.planning.spark.workers import PYTHON_MEMORY


@pytest.mark.parametrize(
    ("configured", "is_limited"),
    [({}, False), ({PYTHON_MEMORY: "0"}, False), ({PYTHON_MEMORY: "4g"}, True), ({PYTHON_MEMORY: "512"}, True)],
)
def test_spark_s_setting_are_workers_limited_unless_it_is_0(configured, is_limited, monkeypatch):
    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert not address_space.is_limited()
    assert are_workers_limited(configured) == is_limited


def test_workers_of_this_machine_inherit_the_shell_s_limit(monkeypatch):
    monkeypatch.setattr(resource, "getrlimit", lambda _: (4 << 30, resource.RLIM_INFINITY))
    assert are_workers_limited({})
    assert are_workers_limited({"spark.master": "local[4]"})
    assert not are_workers_limited({"spark.master": "yarn"})
