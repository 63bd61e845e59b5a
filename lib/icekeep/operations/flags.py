"""The flags that commands share, and the flag or word of a setting, as argparse takes them."""

import argparse
from collections.abc import Callable, Sequence
from typing import Any

from icekeep.errors import UsageError
from icekeep.operations.configuration.setting_values import parse_option, parse_setting
from icekeep.operations.console.looks import COLORS, FORMATS
from icekeep.settings import CONFIG_PATH, CONFIG_VARIABLE, Setting, SettingKind

OUTPUTS = ("table", "json")
MAPPINGS = (SettingKind.OPTIONS, SettingKind.PAIRS)
"""Kinds whose flag may be given several times, once for each key."""

_TABLE = "the table; CATALOG.NS.NAME names both"


def add_table(parser: argparse.ArgumentParser) -> None:
    """What names one table: `--table`, `--catalog`, `--config`."""
    parser.add_argument("--table", metavar="NS.NAME", required=True, help=_TABLE)
    add_catalog(parser)


def add_tables(parser: argparse.ArgumentParser) -> None:
    """What names one table, or several by a pattern: `--table` or `--match`, and `--catalog`, `--config`."""
    one_of = parser.add_mutually_exclusive_group(required=True)
    one_of.add_argument("--table", metavar="NS.NAME", help=_TABLE)
    one_of.add_argument(
        "--match",
        metavar="PATTERN",
        help="instead of one table each of a pattern, one after the other: * within a part of the name, ** over parts, e.g. "
        "'db.*' or 'CATALOG.db.*'",
    )
    add_catalog(parser)


def add_catalog(parser: argparse.ArgumentParser, default: str = "") -> None:
    """`--catalog` and `--config`; `default` is what the help says of a catalog that is not named."""
    parser.add_argument("--catalog", metavar="NAME", help=f"the catalog, as the configuration calls it{default}")
    add_conf(parser)


def add_conf(parser: argparse.ArgumentParser) -> None:
    """`--config`, and `--conf`, its earlier name."""
    parser.add_argument(
        "--config",
        "--conf",
        dest="conf",
        metavar="FILE",
        type=_argument(_configuration),
        help=f"the configuration (default: ${CONFIG_VARIABLE}, {CONFIG_PATH}, or ~/.config/icekeep/icekeep.yaml)",
    )


def _configuration(text: str) -> str:
    if text.startswith("spark.") and "=" in text:
        raise UsageError(
            f"{text!r} is a setting of Spark, and this flag names icekeep's configuration; give it to spark-submit"
        )
    return text


def add_setting(parser: argparse._ActionsContainer, setting: Setting, now_ms: int) -> None:
    """The flag or word of a setting; times in it are read as seen from `now_ms`, epoch milliseconds."""
    if setting.kind is SettingKind.SWITCH:
        parser.add_argument(setting.flag, dest=setting.name, action="store_const", const=True, help=setting.help)
        return
    parse: Callable[[str], Any] = parse_option
    if setting.kind not in MAPPINGS:
        parse = lambda text: parse_setting(setting, text, now_ms)  # noqa: E731
    if setting.is_positional:
        parser.add_argument(
            setting.name,
            metavar=setting.shown or setting.kind.value,
            type=_argument(parse),
            nargs=None if setting.is_required else "?",
            choices=setting.choices or None,
            help=setting.help,
        )
        return
    parser.add_argument(
        setting.flag,
        dest=setting.name,
        metavar=setting.shown or setting.kind.value,
        type=_argument(parse),
        action="append" if setting.kind in MAPPINGS else "store",
        required=setting.is_required,
        choices=setting.choices or None,
        help=setting.help,
    )


def _argument(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    """The flag's name is added by argparse, but only to an error of its own kind."""

    def parse_argument(text: str) -> Any:
        try:
            return parse(text)
        except UsageError as error:
            raise argparse.ArgumentTypeError(error.message) from error

    return parse_argument


def add_output(
    parser: argparse.ArgumentParser,
    outputs: Sequence[str] = OUTPUTS,
    log_formats: Sequence[str] | None = FORMATS,
    needs: str = "",
) -> None:
    """`--output` and what else says how an answer is given; `needs` says which forms need more packages."""
    parser.add_argument("--output", choices=outputs, default="table", help=f"how stdout shows the result{needs}")
    parser.add_argument(
        "--wide", action="store_true", help="leave out, cut and wrap nothing for the width of the terminal"
    )
    parser.add_argument(
        "--columns", metavar="A,B", help="of tables on a terminal these columns, by their names in JSON or their labels"
    )
    parser.add_argument(
        "--color", choices=COLORS, default="auto", help="colours; auto: on a terminal, unless NO_COLOR is set"
    )
    also = "; for any other form send stdout to one" if {*outputs} - {*OUTPUTS} else ""
    parser.add_argument("--result-file", metavar="PATH", help=f"also write the result to a file, always as JSON{also}")
    parser.add_argument(
        "--verbose",
        action="store_true",
        help="log lines of all that happens, with times, and tracebacks of errors",
    )
    parser.add_argument(
        "--log-format",
        choices=log_formats,
        help="format of stderr: text, or json with one object per line (default: text)",
    )


def add_metrics(parser: argparse.ArgumentParser) -> None:
    """`--metrics-file`."""
    parser.add_argument(
        "--metrics-file", metavar="PATH", help="keep metrics of runs in a file, for node_exporter's textfile collector"
    )
