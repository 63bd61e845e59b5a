"""Options of Iceberg's `rewrite_position_delete_files`, under its own names, with its defaults; and properties of the table."""

from collections.abc import Mapping

from icekeep.maintenance.groups.file_sizes import FileSizes, file_sizes
from icekeep.maintenance.groups.options import RewriteOptions
from icekeep.spec.properties import whole_number
from icekeep.spec.types import MIB

_TARGET = "write.delete.target-file-size-bytes"
_TARGET_DEFAULT = 64 * MIB


class RewritePositionDeletesOptions(RewriteOptions, frozen=True, kw_only=True):
    """On tables of format version 3 sizes and `min-input-files` choose nothing: each position delete file becomes vectors."""


def delete_file_sizes(options: RewritePositionDeletesOptions, properties: Mapping[str, str]) -> FileSizes:
    """The sizes that planning goes by; the target is `write.delete.target-file-size-bytes` where no option says it.

    Raises:
        OptionError: not `min < target < max`.
        PropertyError: the property is no size.
    """
    target = whole_number(properties, _TARGET, _TARGET_DEFAULT, least=1)
    return file_sizes(options, target)
