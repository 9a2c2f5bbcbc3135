"""The cache that threads share."""

from unittest.mock import Mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from secondlook.sources.reading_threads import SharedCache


@given(keys=st.lists(st.integers(0, 9), max_size=60), max_weight=st.integers(0, 30), min_items=st.integers(1, 3))
@settings(deadline=None, max_examples=60)
def test_items_used_last_are_kept(keys: list[int], max_weight: int, min_items: int) -> None:
    cache = SharedCache(max_weight, len, min_items)
    kept: list[int] = []
    for key in keys:
        read = Mock(return_value=bytes(key))
        assert cache.get(key, read) == bytes(key)
        assert read.called == (key not in kept)
        kept = [other for other in kept if other != key] + [key]
        while sum(kept) > max_weight and len(kept) > min_items:
            kept.pop(0)


def test_what_cannot_be_read_is_read_again() -> None:
    cache = SharedCache(100, len)

    def fail() -> bytes:
        raise OSError("broken")

    for _ in range(3):
        with pytest.raises(OSError, match="broken"):
            cache.get("key", fail)
    assert cache.get("key", lambda: b"item") == b"item"
