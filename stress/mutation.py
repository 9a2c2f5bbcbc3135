"""Mutations of files: bytes changed at random, values replaced by awkward ones, records forged."""

import copy
import json
import re
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np

from secondlook.files import compute_checksum

Rng = np.random.Generator

AWKWARD_VALUES: tuple[Any, ...] = (
    *(None, True, "", [], {}, 0, -1, 0.5, 10**30, -(10**400), 1e308, "\0", "a" * 5000, "../../x", "é\ud800", "=1+1"),
    *([0], [[]] * 3, {"a": 1}, "nan", "http://127.0.0.1:9/x", "function:os:getcwd", "identity", "/dev/null"),
)
AWKWARD_TEXTS = (
    "",
    "-1",
    "0",
    "1e999",
    "nan",
    "99999999999999999999",
    ",",
    "\n",
    "\0",
    "'",
    '"',
    "[",
    "=",
    "é",
    "../x",
)
FACTORS = (-1, 0, 2, 10**6, 10**18)
AWKWARD_BYTES = (b"\0\0\0\0", b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\xff\xff\xff\x7f", b"\x80", b"\0" * 64)


def flip_bit(content: bytes, rng: Rng) -> bytes:
    """Flip one bit."""
    changed, at = bytearray(content), int(rng.integers(len(content) * 8))
    changed[at // 8] ^= 1 << (at % 8)
    return bytes(changed)


def _flip_bits(content: bytes, rng: Rng) -> bytes:
    for _ in range(int(rng.integers(2, 20))):
        content = flip_bit(content, rng)
    return content


def _cut(content: bytes, rng: Rng) -> bytes:
    return content[: int(rng.integers(len(content)))]


def _remove_span(content: bytes, rng: Rng) -> bytes:
    start = int(rng.integers(len(content)))
    return content[:start] + content[start + int(rng.integers(1, 40)) :]


def _repeat_span(content: bytes, rng: Rng) -> bytes:
    start, length = int(rng.integers(len(content))), int(rng.integers(1, 200))
    span = content[start : start + length]
    return content[:start] + span * int(rng.integers(2, 5)) + content[start + length :]


def _swap_spans(content: bytes, rng: Rng) -> bytes:
    one, two, three = sorted(int(at) for at in rng.integers(0, len(content) + 1, 3))
    return content[:one] + content[two:three] + content[one:two] + content[three:]


def _overwrite(content: bytes, rng: Rng) -> bytes:
    start, value = int(rng.integers(len(content))), AWKWARD_BYTES[int(rng.integers(len(AWKWARD_BYTES)))]
    return content[:start] + value + content[start + len(value) :]


def _insert_noise(content: bytes, rng: Rng) -> bytes:
    start = int(rng.integers(len(content) + 1))
    return content[:start] + rng.bytes(int(rng.integers(1, 64))) + content[start:]


def _replace_word(content: bytes, rng: Rng) -> bytes:
    """Replace a number or word of a text by an awkward one."""
    text = content.decode("utf-8", "surrogateescape")
    words = list(re.finditer(r"-?[\w.]+", text))
    if not words:
        return _insert_noise(content, rng)
    found, new = words[int(rng.integers(len(words)))], AWKWARD_TEXTS[int(rng.integers(len(AWKWARD_TEXTS)))]
    return (text[: found.start()] + new + text[found.end() :]).encode("utf-8", "surrogateescape")


def _replace_json_value(content: bytes, rng: Rng) -> bytes:
    """Replace, remove or nest a value anywhere in a JSON document; other content has a word replaced."""
    try:
        return _change_document(json.loads(content), rng)
    except (ValueError, RecursionError):
        return _replace_word(content, rng)


def _change_document(document: Any, rng: Rng) -> bytes:
    places = list(_find_places(document)) if isinstance(document, dict | list) else []
    if not places:
        raise ValueError("no place to change")
    holder, key = places[int(rng.integers(len(places)))]
    action = int(rng.integers(6))
    if action == 0:
        del holder[key]
    elif action == 1:
        holder[key] = json.loads("[" * 300 + "]" * 300)
    else:
        holder[key] = AWKWARD_VALUES[int(rng.integers(len(AWKWARD_VALUES)))]
    return json.dumps(document).encode()


def forge(content: bytes, rng: Rng) -> bytes:
    """Change some values of a JSON record, and remove or recompute its checksum."""
    document = json.loads(content)
    document.pop("checksum", None)
    for _ in range(int(rng.choice([1, 2, 3], p=[0.6, 0.3, 0.1]))):
        with suppress(RecursionError):  # two deep nestings in one another
            document = _forge_value(document, rng)
    if rng.random() < 0.5:
        with suppress(ValueError, RecursionError):  # texts that are no Unicode and deep nesting have none
            document["checksum"] = compute_checksum(document)
    return json.dumps(document).encode()


def _forge_value(document: Any, rng: Rng) -> Any:
    """Replace a value by a plausible value of its type, or by an awkward one."""
    places = list(_find_places(document))
    if not places or rng.random() < 0.4:
        return json.loads(_change_document(document, rng)) if places else document
    holder, key = places[int(rng.integers(len(places)))]
    value = holder[key]
    if isinstance(value, int | float) and rng.random() < 0.7:
        holder[key] = value * FACTORS[int(rng.integers(len(FACTORS)))]
    elif isinstance(value, list) and rng.random() < 0.5:
        holder[key] = value * int(rng.integers(4))
    else:
        alike = [other[name] for other, name in places if type(other[name]) is type(value)]
        holder[key] = copy.deepcopy(alike[int(rng.integers(len(alike)))])
    return document


def _find_places(value: Any) -> Any:
    """Yield the container and the key of every value in a JSON document."""
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
        yield value, key
        if isinstance(inner, dict | list):
            yield from _find_places(inner)


BYTE_MUTATIONS: tuple[Callable[[bytes, Rng], bytes], ...] = (
    *(flip_bit, _flip_bits, _cut, _remove_span, _repeat_span, _swap_spans, _overwrite, _insert_noise),
)
TEXT_MUTATIONS = (_replace_json_value, _replace_word)


def mutate(content: bytes, rng: Rng) -> bytes:
    """Return other content: one mutation, sometimes two or three; texts are mostly mutated as texts."""
    is_text = b"\0" not in content and content.isascii()
    for _ in range(int(rng.choice([1, 2, 3], p=[0.7, 0.2, 0.1]))):
        choices = TEXT_MUTATIONS if is_text and rng.random() < 0.6 else BYTE_MUTATIONS
        content = choices[int(rng.integers(len(choices)))](content or b"0", rng)
    return content
