"""The metadata file held against the spec. Pure: no other file is looked at."""

import uuid

from icekeep.errors import InvalidTableError, UnsupportedError
from icekeep.maintenance.checking.faults import Tally
from icekeep.maintenance.checking.metadata.findings import Findings
from icekeep.maintenance.checking.metadata.lineage import check_lineage
from icekeep.maintenance.checking.metadata.logs import check_logs_of, check_statistics
from icekeep.maintenance.checking.metadata.reading import Document, read_document
from icekeep.maintenance.checking.metadata.schemas import check_schemas, check_sort_orders, check_specs
from icekeep.maintenance.checking.metadata.snapshots import check_references, check_snapshots
from icekeep.maintenance.checking.metadata_classes import UUID_WRONG
from icekeep.spec.metadata import metadata_from_json
from icekeep.spec.schema import name_mapping_of
from icekeep.storage.locations import is_location

_LOCATION_WRONG = 127
_NAME_MAPPING_WRONG = 137


def check_metadata(raw: object, location: str, tally: Tally) -> None:
    """Hold the decoded JSON of a metadata file against the spec, of any format version that is known.

    It raises nothing for whatever JSON there is. Where nothing but notices is told, `parse_metadata` takes the file.

    Args:
        raw: what the file holds.
        location: of the file.
        tally: takes the faults; a version that is not known is a gap.
    """
    findings = Findings(location, tally)
    document = read_document(raw, findings)
    if document is None:
        return
    _check_top(document, findings)
    check_schemas(document, findings)
    check_specs(document, findings)
    check_sort_orders(document, findings)
    check_snapshots(document, findings)
    check_references(document, findings)
    check_logs_of(document, findings)
    check_statistics(document, findings)
    check_lineage(document, findings)
    if not findings.has_faults:
        check_loads(raw, findings)


def _check_top(document: Document, findings: Findings) -> None:
    if document.table_uuid is not None and not is_uuid(document.table_uuid):
        findings.add(UUID_WRONG, f"table-uuid is {document.table_uuid!r}, which is no UUID")
    if document.location is not None and not is_location(document.location):
        findings.add(_LOCATION_WRONG, f"location is {document.location!r}; it must be SCHEME://PATH or /PATH")
    try:
        name_mapping_of(document.properties)
    except InvalidTableError as error:
        findings.add(_NAME_MAPPING_WRONG, error.message)
    except RecursionError:
        findings.add(_NAME_MAPPING_WRONG, "the name mapping is nested too deeply")


def check_loads(raw: object, findings: Findings) -> None:
    """Try to load the metadata: what is refused there is a fault, whatever the rules know of it."""
    try:
        metadata_from_json(raw)
    except InvalidTableError as error:
        findings.unreadable(error.message)
    except RecursionError:
        findings.unreadable("it is nested too deeply")
    except UnsupportedError as error:
        findings.gap(error.message)


def is_uuid(text: str) -> bool:
    """Whether a text is a UUID, in any of the spellings that Python reads."""
    try:
        uuid.UUID(text)
    except ValueError:
        return False
    return True
