import pytest

from contracts.catalog_contract import CatalogContract
from icekeep.catalog.wrappers import CatalogWrapper, lists_pointers, unwrapped
from icekeep.errors import NotFoundError
from icekeep.storage.local.storage import LocalStorage
from kit.catalogs import EVENTS
from kit.memory_catalog import MemoryCatalog


class TestMemoryCatalog(CatalogContract):
    """The fake keeps the contract too: on the disk, where the contract looks for files."""

    @pytest.fixture
    def properties(self):
        return {}

    @pytest.fixture
    def catalog(self, tmp_path):
        catalog = MemoryCatalog(LocalStorage(), warehouse=f"file://{tmp_path}/warehouse")
        catalog.create_namespace(("db",))
        return catalog

    @pytest.fixture
    def other(self, catalog):
        return catalog

    def test_namespace_is_suggested_only_for_mistyped_last_part(self, catalog):
        for name in (("sales",), ("sales", "daily"), ("sales", "hourly")):
            catalog.create_namespace(name)
        with pytest.raises(NotFoundError, match=r"nor a namespace 'sales.dialy'; did you mean 'sales.daily'\?$"):
            catalog.load(("sales", "dialy", "events"))
        with pytest.raises(
            NotFoundError, match=r"'sales.yearly'; catalog '\w+' has 4 namespaces; `icekeep report --catalog"
        ):
            catalog.load(("sales", "yearly", "events"))

    def test_nothing_is_found_in_a_catalog_that_was_never_used(self, properties, tmp_path):
        catalog = MemoryCatalog()
        with pytest.raises(NotFoundError):
            catalog.load(EVENTS)
        with pytest.raises(NotFoundError):
            catalog.drop(EVENTS)
        assert catalog.list_namespaces() == []


class TestCatalogWrapper(TestMemoryCatalog):
    """A catalog around another one keeps the contract."""

    @pytest.fixture
    def catalog(self, tmp_path):
        catalog = MemoryCatalog(LocalStorage(), warehouse=f"file://{tmp_path}/warehouse")
        catalog.create_namespace(("db",))
        return CatalogWrapper(catalog)

    def test_only_the_catalog_itself_is_asked_for_what_not_all_can(self, catalog):
        assert unwrapped(CatalogWrapper(catalog)) is catalog.inner
        assert lists_pointers(catalog) is None
        catalog.inner.list_pointers = catalog.inner.list_pointers_beside = dict
        assert lists_pointers(CatalogWrapper(catalog)) is catalog.inner
