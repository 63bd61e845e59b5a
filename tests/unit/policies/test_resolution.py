"""Which policy decides of a job, and which layer of a value."""

from collections.abc import Mapping

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icekeep.policies.resolution import (
    NeverRun,
    Schedule,
    TableRules,
    layered,
    never_run,
    rules_for,
    schedule_of,
    window_of,
)
from icekeep.policies.values import JobCall, Layer, LayerKind, Mode, Policy, PolicyValue, Rules, parse_glob
from icekeep.policies.windows import Trigger, Window
from kit.cases import cases, for_each

JOBS = ("compact", "rewrite_manifests", "expire_snapshots")
TABLE = "c.sales.orders"


def said(text: str, source: str = "here", **others: object) -> PolicyValue:
    return PolicyValue(text, others.get("value", (f"--{text}",)), source, int(str(others.get("order", 0))))


def layer(kind: LayerKind = LayerKind.POLICY, name: str = "", **jobs: Mapping[str, PolicyValue]) -> Layer:
    return Layer(kind=kind, name=name, jobs=jobs)


def policy(name: str, *match: str, of: Layer, excepted: tuple[str, ...] = (), tables: tuple[str, ...] = ()) -> Policy:
    return Policy(
        name=name,
        schedule=None,
        tables=tables,
        calls=(),
        layer=msgspec.structs.replace(of, name=name),
        match=tuple(map(parse_glob, match)),
        excepted=tuple(map(parse_glob, excepted)),
    )


def rules(*policies: Policy, **others: object) -> Rules:
    return Rules(policies=policies, job_names=JOBS, **others)


def decided(found: TableRules) -> dict[str, tuple[str, tuple[str, ...]]]:
    return {rule.job: (rule.policy, rule.others) for rule in found.jobs}


def test_first_policy_naming_job_decides_alone():
    first = policy("first", "c.sales.*", of=layer(compact={"where": said("first")}))
    every = policy("every", "c.**", of=layer(expire_snapshots={}, compact={"verify": said("verify")}))
    found = rules_for(rules(first, every), TABLE)
    assert found.policies == ("first", "every")
    assert decided(found) == {"compact": ("first", ("every",)), "expire_snapshots": ("every", ())}
    assert found.jobs[0].call == JobCall("compact", ("--first",))
    turned = rules_for(rules(every, first), TABLE)
    assert decided(turned) == {"compact": ("every", ("first",)), "expire_snapshots": ("every", ())}


def test_policy_reaches_listed_and_matched_minus_excepted():
    one = policy("p", "c.sales.*", of=layer(), excepted=("c.**.tmp_*",), tables=("d.a.b",))
    names = ("c.sales.orders", "c.sales.tmp_1", "c.stock.items", "d.a.b", "d.a.c")
    assert [name for name in names if one.reaches(name)] == ["c.sales.orders", "d.a.b"]
    assert rules_for(rules(one), "c.stock.items") == TableRules(table="c.stock.items", policies=(), jobs=())


def test_pattern_without_catalog_reaches_configured_ones_only():
    """Others may come from Spark's or PyIceberg's configuration of whoever starts the run."""
    one = msgspec.structs.replace(policy("p", "*.sales.**", "mine.**", of=layer()), catalogs=frozenset({"lake"}))
    names = ("lake.sales.orders", "other.sales.orders", "mine.sales.orders")
    assert [name for name in names if one.reaches(name)] == ["lake.sales.orders", "mine.sales.orders"]
    assert [name for name in ("lake", "other", "mine") if one.may_reach_in(name)] == ["lake", "mine"]


def test_layers_lie_one_within_the_other():
    """From the defaults in to the properties; each overrides the ones outside it, key by key."""
    values = {}
    for number, name in enumerate(
        ("defaults", "policy", "stored", "catalog", "namespace", "inner", "table", "property")
    ):
        values[name] = layer(compact={f"k{n}": said(name, name) for n in range(number, 8)})
    found = rules_for(
        rules(
            policy("p", "c.**", of=values["policy"]),
            defaults=values["defaults"],
            namespaces={
                "c.a.b": values["inner"],
                "c": values["catalog"],
                "c.a": values["namespace"],
                "c.a.c": layer(compact={"k0": said("no")}),
                "c.ab": layer(compact={"k0": said("no")}),
            },
            tables={"c.a.b.t": values["table"], "c.a.b.u": layer(compact={"k0": said("no")})},
        ),
        "c.a.b.t",
        stored=values["stored"],
        properties=values["property"],
    )
    (rule,) = found.jobs
    assert {one.key: one.innermost.source for one in rule.values} == {f"k{n}": name for n, name in enumerate(values)}
    assert [one.source for one in next(v for v in rule.values if v.key == "k3").overridden] == [
        "stored",
        "policy",
        "defaults",
    ]


KEYS = ("enabled", "where", "options.a", "options.b", "when.manifests_over")
layers_of = st.lists(
    st.dictionaries(st.sampled_from(KEYS), st.text("xyz", min_size=1, max_size=2).map(said)).map(
        lambda values: layer(compact=values)
    ),
    max_size=5,
)


@cases(300)
@given(outer=layers_of, inner=layers_of)
def test_an_outer_layer_never_changes_what_an_inner_one_says(outer, inner):
    within = {one.key: one.innermost for one in layered(inner, "compact")}
    both = {one.key: one.innermost for one in layered([*outer, *inner], "compact")}
    assert within.items() <= both.items()
    assert {key: one for key, one in both.items() if key not in within} == {
        one.key: one.innermost for one in layered(outer, "compact") if one.key not in within
    }


@cases(300)
@given(chain=layers_of)
def test_innermost_value_wins_and_overridden_ones_are_kept(chain):
    for one in layered(chain, "compact"):
        texts = [each.jobs["compact"][one.key] for each in chain if one.key in each.jobs["compact"]]
        assert [*reversed(texts)] == [one.innermost, *one.overridden]


PATTERNS = ("c.**", "c.sales.*", "c.sales.orders", "d.**", "*.*.orders", "c.stock.*")
policies_of = st.lists(
    st.tuples(st.sampled_from(PATTERNS), st.sets(st.sampled_from(JOBS), min_size=1)), max_size=5
).map(
    lambda some: [
        policy(f"p{n}", pattern, of=layer(**{job: {"where": said(f"p{n}")} for job in sorted(jobs)}))
        for n, (pattern, jobs) in enumerate(some)
    ]
)


@cases(300)
@given(policies=policies_of, data=st.data())
def test_the_order_of_policies_decides_and_nothing_else(policies, data):
    """Not their names, not how narrow a pattern is, and not the policies that do not reach the table."""
    turned = data.draw(st.permutations(policies))
    found = rules_for(rules(*turned), TABLE)
    reaching = [one for one in turned if one.reaches(TABLE)]
    assert found.policies == tuple(one.name for one in reaching)
    assert found.jobs == rules_for(rules(*reaching), TABLE).jobs
    for job in JOBS:
        names = [one.name for one in reaching if job in one.layer.jobs]
        assert decided(found).get(job, ("", ())) == (names[0] if names else "", tuple(names[1:]))
    renamed = [msgspec.structs.replace(one, name=f"z{number}") for number, one in enumerate(reversed(turned))][::-1]
    assert [rule.call for rule in rules_for(rules(*renamed), TABLE).jobs] == [rule.call for rule in found.jobs]


def test_job_is_held_if_innermost_switch_is_off():
    on, off = said("true", "on", value=True), said("false", "off", value=False)
    base = policy("p", "c.**", of=layer(compact={"enabled": off}, expire_snapshots={}))
    owner = layer(LayerKind.PROPERTIES, compact={"enabled": on})
    found = rules_for(rules(base), TABLE, properties=owner)
    assert [rule.held_by for rule in found.jobs] == [None, None]
    assert [rule.held_by for rule in rules_for(rules(base), TABLE).jobs] == ["switched off by off", None]
    never = Layer(kind=LayerKind.PROPERTIES, keys={"enabled": off}, jobs=owner.jobs)
    assert [rule.held_by for rule in rules_for(rules(base), TABLE, properties=never).jobs] == [
        "switched off by off"
    ] * 2


@pytest.mark.parametrize("place", ["namespaces", "tables"])
def test_place_switched_off_in_file_cannot_be_enabled_by_table(place):
    on, off = said("true", "on", value=True), said("false", "off", value=False)
    base = policy("p", "c.**", of=layer(compact={}, expire_snapshots={}))
    name, kind = {"namespaces": ("c.sales", LayerKind.NAMESPACE), "tables": (TABLE, LayerKind.TABLE)}[place]
    owner = Layer(kind=LayerKind.PROPERTIES, keys={"enabled": on}, jobs={"compact": {"enabled": on}})
    whole = {place: {name: Layer(kind=kind, keys={"enabled": off})}}
    assert [rule.held_by for rule in rules_for(rules(base, **whole), TABLE, properties=owner).jobs] == [
        "switched off by off"
    ] * 2
    one = {place: {name: layer(kind, compact={"enabled": off})}}
    assert [rule.held_by for rule in rules_for(rules(base, **one), TABLE, properties=owner).jobs] == [
        "switched off by off",
        None,
    ]
    inner = {"namespaces": {"c": layer(LayerKind.NAMESPACE, compact={"enabled": off})}}
    inner.setdefault(place, {})[name] = layer(kind, compact={"enabled": on})
    assert [rule.held_by for rule in rules_for(rules(base, **inner), TABLE).jobs] == [None, None]


def test_nothing_runs_by_a_layer_that_cannot_be_read():
    base = policy("p", "c.**", of=layer(compact={}, expire_snapshots={}))
    one = Layer(kind=LayerKind.STORED, doubtful_jobs=frozenset({"compact"}))
    whole = Layer(kind=LayerKind.PROPERTIES, is_doubtful=True)
    assert [rule.held_by for rule in rules_for(rules(base), TABLE, stored=one).jobs] == [
        "the catalog's stored policies cannot be read",
        None,
    ]
    assert [rule.held_by for rule in rules_for(rules(base), TABLE, properties=whole).jobs] == [
        "the table's properties cannot be read"
    ] * 2


def test_no_layer_adds_a_job_that_no_policy_names():
    base = policy("p", "c.**", of=layer(compact={}))
    owner = layer(LayerKind.PROPERTIES, expire_snapshots={"retain_last": said("5")})
    found = rules_for(rules(base), TABLE, properties=owner)
    assert [rule.job for rule in found.jobs] == ["compact"]
    assert found.unasked == {"expire_snapshots": (said("5"),)}


def test_arguments_follow_order_of_settings_and_options():
    outer = layer(
        compact={"options.b": said("b", order=3), "options.a": said("a", order=3), "verify": said("v", order=5)}
    )
    inner = layer(
        LayerKind.TABLE,
        compact={"where": said("w", order=1), "options.b": said("B", order=3), "enabled": said("x", value=True)},
    )
    found = rules_for(rules(policy("p", "c.**", of=outer), tables={TABLE: inner}), TABLE)
    assert found.jobs[0].call.arguments == ("--w", "--B", "--a", "--v")


def test_mode_window_and_trigger_are_read_from_the_values():
    window = Window(from_minute=60)
    of = Layer(
        kind=LayerKind.POLICY,
        keys={"mode": said("observe", value=Mode.OBSERVE), "window": said("w", value=window)},
        jobs={
            "compact": {"when.small_files_over": said("9", value=9), "when.age_over": said("1s", value=1000)},
            JOBS[1]: {},
        },
    )
    compact, manifests = rules_for(rules(policy("p", "c.**", of=of)), TABLE).jobs
    assert (compact.mode, compact.window, manifests.mode, manifests.window) == (Mode.OBSERVE, window) * 2
    assert (compact.trigger, manifests.trigger) == (Trigger(small_files_over=9, age_over_ms=1000), Trigger())
    assert compact.call == JobCall("compact", ())
    plain = rules_for(rules(policy("p", "c.**", of=layer(compact={}))), TABLE).jobs[0]
    assert (plain.mode, plain.window, plain.trigger) == (Mode.RUN, None, Trigger())


def test_a_scheduler_runs_each_policy_by_itself():
    one = policy("one", of=layer(compact={"where": said("one")}), tables=(TABLE, "c.a.b"))
    two = policy("two", of=layer(compact={"where": said("two")}), tables=(TABLE,))
    both = rules(one, two, tables={"c.a.b": layer(LayerKind.TABLE, compact={"where": said("table")})})
    assert schedule_of(both, two).calls == {TABLE: ()}
    assert schedule_of(both, two).left_to_others == (f"compact of {TABLE}: policy 'one'",)
    assert schedule_of(both, one).left_to_others == ()
    assert schedule_of(both, one).calls == {
        TABLE: (JobCall("compact", ("--one",)),),
        "c.a.b": (JobCall("compact", ("--table",)),),
    }


def of_schedule(one, schedule="@daily"):
    return msgspec.structs.replace(one, schedule=schedule)


def test_job_decided_by_unscheduled_policy_is_never_run():
    by_hand = policy("by-hand", "c.**", of=layer(compact={}))
    nightly = of_schedule(policy("nightly", of=layer(compact={}, expire_snapshots={}), tables=(TABLE, "c.a.b")))
    weekly = of_schedule(policy("weekly", "c.**", of=layer(compact={})), "@weekly")
    three = rules(by_hand, nightly, weekly)
    names = (TABLE, "c.a.b", "c.a.other")
    found = [rules_for(three, name) for name in names]
    both = NeverRun(job="compact", policy="nightly", decided_by="by-hand", tables=("c.a.b", TABLE))
    other = NeverRun(job="compact", policy="weekly", decided_by="by-hand", tables=("c.a.other",))
    assert never_run(three, found) == (both, other)
    assert [(one.policy, one.tables) for one in never_run(three, found, {"weekly"})] == [
        ("weekly", tuple(sorted(names)))
    ]
    assert schedule_of(three, nightly).never_run == (both,)
    assert both.line == (
        "no schedule runs compact on c.a.b and 1 more, which policy 'nightly' asks for: policy 'by-hand' stands before it, "
        "decides of that job there, and has no schedule"
    )
    # Behind the others it takes nothing from them; what is switched off should not run; and policies by hand ask for nothing.
    turned = rules(nightly, weekly, by_hand)
    assert never_run(turned, [rules_for(turned, name) for name in names]) == ()
    off = rules(
        by_hand,
        nightly,
        tables={name: layer(LayerKind.TABLE, compact={"enabled": said("false", value=False)}) for name in names},
    )
    assert never_run(off, [rules_for(off, name) for name in names]) == ()
    hands = rules(by_hand, policy("second", "c.**", of=layer(compact={})))
    assert never_run(hands, [rules_for(hands, name) for name in names]) == ()


OF_ALL = {"mode": said("observe", value=Mode.OBSERVE)}
HELD = {"enabled": said("false", value=False)}


def test_schedule_observes_and_omits_held_jobs():
    one = policy("one", of=layer(compact={}, expire_snapshots={"where": said("w")}), tables=(TABLE,))
    found = schedule_of(
        rules(
            one,
            defaults=Layer(kind=LayerKind.DEFAULTS, keys=OF_ALL),
            tables={TABLE: layer(LayerKind.TABLE, compact=HELD)},
        ),
        one,
    )
    assert found.calls == {TABLE: (JobCall("expire_snapshots", ("--w", "--dry-run")),)}


@for_each(
    ("changes", "others", "why"),
    [
        ({"match": (parse_glob("c.**"),)}, {}, "it has `match`, and which tables there are only the catalog knows"),
        (
            {},
            {"tables": {TABLE: layer(LayerKind.TABLE, compact={"when.manifests_over": said("1", value=1)})}},
            "job compact of table c.sales.orders has conditions (`when`)",
        ),
        (
            {},
            {"defaults": Layer(kind=LayerKind.DEFAULTS, keys={"window": said("w", value=Window())})},
            "table c.sales.orders has a `window`",
        ),
        (
            {"submit_over_bytes": 5},
            {"defaults": Layer(kind=LayerKind.DEFAULTS, keys={"submit_over": said("5", value=5)})},
            "it has `submit_over`, and how large tables are only the catalog knows",
        ),
    ],
)
def test_schedule_that_needs_catalog_has_no_known_calls(changes, others, why):
    one = msgspec.structs.replace(policy("one", of=layer(compact={}), tables=(TABLE,)), **changes)
    found = schedule_of(rules(one, **others), one)
    assert (found.calls, found.asks) == ({}, why)


def test_a_scheduler_asks_nothing_where_no_job_is_submitted():
    one = msgspec.structs.replace(policy("one", of=layer(compact={}), tables=(TABLE,)), submit_over_bytes=None)
    never = Layer(kind=LayerKind.DEFAULTS, keys={"submit_over": said("null", value=None)})
    assert schedule_of(rules(one, defaults=never), one) == Schedule({TABLE: (JobCall("compact", ()),)})


def test_a_window_is_that_of_the_policy_that_decides():
    night, day = Window(from_minute=60, to_minute=120), Window(from_minute=600, to_minute=660)
    one = policy(
        "one", "c.**", of=Layer(kind=LayerKind.POLICY, keys={"window": said("w", value=night)}, jobs={"compact": {}})
    )
    two = policy(
        "two", "c.**", of=Layer(kind=LayerKind.POLICY, keys={"window": said("w", value=day)}, jobs={"compact": {}})
    )
    both = rules(one, two)
    assert window_of(both, "one", TABLE, "compact") == night
    assert window_of(both, "two", TABLE, "compact") is None
    assert window_of(both, "one", TABLE, "expire_snapshots") is None
