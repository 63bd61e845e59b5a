from icekeep.operations.console.plain_text import plain_text

PAGE = """\
# `safety`: a check

A paragraph that is **long**, over
two lines; see [the page](claimed.md), [left-tag](left-tag.md#now) and [faults](../faults.md), [here](#below).

1. First,
   over two lines:

```
icekeep check --table local.db.events   # as it is, however long the line may be, with all of its spaces in their places
  indented
```

2. Second.
* An item.
  Its second line.

| left | what becomes of it |
|---|---|
| a tag | goes |
## Next
The end.
"""


def test_a_page_is_shown_as_a_terminal_can():
    assert plain_text(PAGE).splitlines() == [
        "`safety`: a check",
        "=================",
        "",
        "A paragraph that is long, over two lines; see the page (`icekeep help claimed`),",
        "`icekeep help left-tag` and faults (docs/faults.md), here.",
        "",
        "1. First, over two lines:",
        "",
        "    icekeep check --table local.db.events   # as it is, however long the line may be, with all of its "
        "spaces in their places",
        "      indented",
        "",
        "2. Second.",
        "* An item. Its second line.",
        "",
        "* a tag: goes",
        "Next",
        "----",
        "The end.",
    ]


def test_an_address_on_the_web_stays_as_it_is():
    assert (
        plain_text("See [the spec](https://iceberg.apache.org/spec/).")
        == "See the spec (https://iceberg.apache.org/spec/).\n"
    )


def test_a_block_of_code_keeps_what_would_be_a_heading_or_a_list():
    assert plain_text("```\n# no heading\n\n* no item\n```\n") == "    # no heading\n\n    * no item\n"


def test_a_command_stays_on_one_line():
    for blanks in range(70, 100):
        text = plain_text(f"{'x' * blanks} `icekeep help not-found` and so on")
        assert "`icekeep help not-found`" in text
        assert "\N{NO-BREAK SPACE}" not in text
