"""What people call a model or a data set that a text names."""

BETWEEN_MEMBERS = " | "
"""Joins the texts of an ensemble's members into its name, from which it can be loaded again."""


def short_name(text: str) -> str:
    """Return a file's or folder's own name, without scheme, place and options: 'onnx:a/b.onnx?mean=.5' is 'b.onnx'."""
    members = [member.partition("?")[0].rstrip("/") for member in text.split(BETWEEN_MEMBERS)]
    return " + ".join(member.rpartition("/")[2].rpartition(":")[2] or member for member in members)
