import pytest

from icekeep.spec.times import age_ms
from kit.cases import for_each


@for_each(
    ("text", "milliseconds"),
    [
        ("1s", 1000),
        ("30m", 1_800_000),
        ("36h", 129_600_000),
        ("7d", 604_800_000),
        ("2w", 1_209_600_000),
        ("0s", 0),
        ("10ms", 10),
        ("123456789012345ms", 123_456_789_012_345),
    ],
)
def test_an_age_is_a_number_and_a_unit(text: str, milliseconds: int):
    assert age_ms(text) == milliseconds


@for_each(
    "text", ["", "7", "d", "7D", "7 d", "-7d", "1.5h", "7y", "1234567890d", "1234567890123456ms", "1Ms", "ms", "٧d"]
)
def test_anything_else_is_no_age(text: str):
    with pytest.raises(ValueError, match="an age is a whole number with ms, s, m, h, d or w"):
        age_ms(text)
