"""All classes of faults, by number."""

from collections.abc import Mapping

from icekeep.maintenance.checking.content_classes import CONTENT_CLASSES
from icekeep.maintenance.checking.faults import FaultClass
from icekeep.maintenance.checking.file_classes import FILE_CLASSES
from icekeep.maintenance.checking.manifest_classes import MANIFEST_CLASSES
from icekeep.maintenance.checking.metadata_classes import METADATA_CLASSES

CLASSES: Mapping[int, FaultClass] = {
    one.number: one for one in (*METADATA_CLASSES, *MANIFEST_CLASSES, *FILE_CLASSES, *CONTENT_CLASSES)
}
