from icekeep.formats.deletes.read import DeleteCache


def test_what_fits_is_kept_and_counted():
    cache = DeleteCache(budget_bytes=10)
    cache.keep("a", "A", 6)
    cache.keep("b", "B", 4)
    assert (cache.get("a"), cache.get("b"), cache.get("c")) == ("A", "B", None)
    assert cache.held_bytes == 10


def test_what_does_not_fit_is_not_kept():
    cache = DeleteCache(budget_bytes=10)
    cache.keep("a", "A", 11)
    assert cache.get("a") is None
    assert cache.held_bytes == 0


def test_what_the_present_data_file_used_does_not_go_for_others():
    cache = DeleteCache(budget_bytes=10)
    cache.keep("a", "A", 6)
    assert not cache.make_room(5)
    cache.keep("b", "B", 5)
    assert (cache.get("a"), cache.get("b")) == ("A", None)


def test_what_the_present_data_file_has_no_use_for_makes_room():
    cache = DeleteCache(budget_bytes=10)
    cache.keep("a", "A", 6)
    cache.keep("b", "B", 4)
    cache.begin_file()
    assert cache.get("b") == "B"
    assert cache.make_room(6)
    cache.keep("c", "C", 6)
    assert (cache.get("a"), cache.get("b"), cache.get("c")) == (None, "B", "C")
    assert cache.held_bytes == 10


def test_a_second_value_of_one_key_is_not_counted_twice():
    cache = DeleteCache(budget_bytes=10)
    cache.keep("a", "A", 6)
    cache.keep("a", "A", 3)
    assert cache.held_bytes == 6


def test_a_full_cache_is_not_looked_through_for_each_file_that_asks():
    """20,000 small delete files cost 20,000 looks each."""

    class Counted(str):
        looks = 0

        def __hash__(self):
            Counted.looks += 1
            return super().__hash__()

    cache = DeleteCache(budget_bytes=1000)
    for number in range(1000):
        cache.keep(Counted(number), number, 1)
    cache.begin_file()
    used = [cache.get(Counted(number)) for number in range(1000)]
    assert used == [*range(1000)]
    Counted.looks = 0
    assert not any(cache.make_room(1) for _ in range(1000))
    assert Counted.looks == 0
    cache.begin_file()
    Counted.looks = 0
    assert all(cache.make_room(1) for _ in range(1000))
    assert Counted.looks < 10
