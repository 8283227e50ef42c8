"""The prompts a worker still holds."""

from turnwire.actors.engines.prefixes import PrefixTable


def test_a_prompt_is_found_by_its_key_and_tenant_only() -> None:
    table: PrefixTable[bytes] = PrefixTable(100)
    table.put("a", b"key", b"prompt", 6)
    assert table.get("a", b"key") == b"prompt"
    assert table.get("b", b"key") is None
    assert table.get("a", b"other") is None


def test_the_longest_unused_goes_beyond_the_bytes() -> None:
    table: PrefixTable[str] = PrefixTable(30)
    for key in (b"1", b"2", b"3"):
        table.put("a", key, key.decode(), 10)
    table.get("a", b"1")
    table.put("a", b"4", "4", 10)
    assert [table.get("a", key) for key in (b"1", b"2", b"3", b"4")] == ["1", None, "3", "4"]
    assert table.size_bytes == 30


def test_the_longest_unused_goes_beyond_the_count() -> None:
    table: PrefixTable[str] = PrefixTable(1000, max_count=2)
    for key in (b"1", b"2", b"3"):
        table.put("a", key, key.decode(), 1)
    assert len(table) == 2
    assert table.get("a", b"1") is None


def test_putting_a_key_again_counts_its_bytes_once() -> None:
    table: PrefixTable[str] = PrefixTable(30)
    table.put("a", b"1", "one", 10)
    table.put("a", b"1", "uno", 20)
    assert table.get("a", b"1") == "uno"
    assert (len(table), table.size_bytes) == (1, 20)


def test_a_prompt_larger_than_the_table_costs_the_others_nothing() -> None:
    table: PrefixTable[str] = PrefixTable(30)
    table.put("a", b"1", "one", 30)
    table.put("a", b"2", "huge", 31)
    assert table.get("a", b"1") == "one"
    assert table.get("a", b"2") is None


def test_a_discarded_prompt_is_gone_and_its_bytes_are_free() -> None:
    table: PrefixTable[str] = PrefixTable(30)
    table.put("a", b"1", "one", 30)
    table.discard("a", b"1")
    table.discard("a", b"1")
    assert table.get("a", b"1") is None
    assert table.size_bytes == 0
