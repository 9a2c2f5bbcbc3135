"""What people call a model or a data set that a text names."""

from urllib.parse import unquote

BETWEEN_MEMBERS = " | "
"""Joins the texts of an ensemble's members into its name, from which it can be loaded again."""


def short_name(text: str) -> str:
    """Return the name given in a text, or else the file's or folder's own: 'onnx:a/b.onnx?mean=.5' is 'b.onnx'."""
    return " + ".join(map(_short_name, text.split(BETWEEN_MEMBERS)))


def _short_name(text: str) -> str:
    address, _, query = text.partition("?")
    for option in query.split("&"):
        if option.startswith("name="):
            return unquote(option.removeprefix("name="))
    place = address.rstrip("/")
    return place.rpartition("/")[2].rpartition(":")[2] or place
