"""The score: between 0 and 100, healthy where nothing is wrong, and no burden ever raises it."""

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import asdict, replace

from icekeep.health.files import Sickness, score_of
from kit.cases import cases

COUNTS = st.integers(0, 10**7)
RATIOS = st.floats(0, 100)
BURDENS = {
    name: st.floats(1, 10**6) if name == "partition_skew" else RATIOS if isinstance(value, float) else COUNTS
    for name, value in asdict(Sickness()).items()
}
SICK = st.fixed_dictionaries(BURDENS).map(lambda values: Sickness(**values))


def test_a_table_without_any_burden_has_all_points():
    assert score_of(Sickness()) == (100.0, ())


def test_one_very_bad_part_is_enough_for_a_bad_score():
    assert score_of(Sickness(small_files_count=10_000))[0] < 40
    assert score_of(Sickness(deleted_ratio=5.0))[0] < 40
    assert score_of(Sickness(faults_count=20))[0] < 20


def test_few_small_files_among_many_others_do_not_matter():
    assert score_of(Sickness(small_files_count=100, other_files_count=1_000_000))[0] > 99


@cases(300)
@given(SICK)
def test_it_is_between_0_and_100_and_parts_say_what_it_lacks(sick):
    score, parts = score_of(sick)
    assert 0 <= score <= 100
    assert all(0 < part.lost < 100 and part.reason for part in parts)
    assert [part.lost for part in parts] == sorted((part.lost for part in parts), reverse=True)
    if parts:
        assert score <= 100 - parts[0].lost + 0.1


@cases(600)
@given(SICK, st.sampled_from(sorted({*BURDENS} - {"other_files_count"})), st.data())
def test_more_of_a_burden_never_raises_it(sick, name, data):
    more = getattr(sick, name) + data.draw(BURDENS[name])
    assert score_of(replace(sick, **{name: more}))[0] <= score_of(sick)[0]


@cases(200)
@given(SICK, COUNTS)
def test_files_of_a_right_size_never_lower_it(sick, more):
    better = replace(sick, other_files_count=sick.other_files_count + more)
    assert score_of(better)[0] >= score_of(sick)[0]


def test_a_reason_says_nothing_of_what_was_not_measured():
    _, (manifests, snapshots) = score_of(Sickness(spare_manifests_count=50, expirable_count=50))
    assert (manifests.reason, snapshots.reason) == ("50 manifests more than needed", "50 snapshots to expire")
    _, (manifests, snapshots) = score_of(
        Sickness(spare_manifests_count=50, expirable_count=50, mean_overlap=1.5, metadata_bytes=3000)
    )
    assert manifests.reason.endswith(", a filter on one partition opens 2.5")
    assert snapshots.reason.endswith(", a metadata file of 3,000 bytes")
