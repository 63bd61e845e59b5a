import msgspec

from icekeep.rendered import Rendered


class Part(msgspec.Struct, frozen=True):
    name: str


class Whole(Rendered, frozen=True):
    snapshot_id: int
    parts: tuple[Part, ...]
    options: dict[int, object]


def test_a_result_as_a_dict_has_plain_values_alone():
    whole = Whole(2**62, (Part("a"), Part("b")), {1: ValueError("x")})
    assert whole.to_dict() == {
        "snapshot_id": 2**62,
        "parts": ({"name": "a"}, {"name": "b"}),
        "options": {"1": "x"},
    }
