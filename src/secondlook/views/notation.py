"""The notation of the paper: arrows for flips and shifts, ↻ ↺ for rotations, × for zoom, γ for gamma, BGR."""

from secondlook.views.arguments import Amount, Argument, format_argument, format_number

_SIGNS = "⇔⇕←→↑↓↻↺×γ"
_DIRECTIONS = {"←": (-1, 0), "→": (1, 0), "↑": (0, -1), "↓": (0, 1)}


def is_paper_notation(piece: str) -> bool:
    """Return whether a step is in the notation of the paper."""
    return piece == "x" or piece[:1] in tuple(_SIGNS) or _is_channel_order(piece)


def rewrite_paper_notation(pieces: list[str]) -> list[str]:
    """Return the text of the same steps; adjacent '←2' and '↓1' are one shift, as in the paper."""
    rewritten: list[str] = []
    pending: tuple[str, str] | None = None  # an arrow that the next one may complete
    for piece in pieces:
        arrow, distance = piece[:1], piece[1:]
        if arrow in _DIRECTIONS and pending and _is_horizontal(arrow) != _is_horizontal(pending[0]):
            rewritten[-1] = _format_shift(dict([pending, (arrow, distance)]))
            pending = None
        elif arrow in _DIRECTIONS:
            rewritten.append(_format_shift({arrow: distance}))
            pending = (arrow, distance)
        else:
            rewritten.append(_rewrite_step(piece))
            pending = None
    return rewritten


def write_paper_notation(name: str, arguments: tuple[Argument, ...]) -> str | None:
    """Return a step in the notation of the paper, or None where it has no sign for it."""
    match name, arguments:
        case "hflip", ():
            return "⇔"
        case "vflip", ():
            return "⇕"
        case "shift", (Amount() as dx, Amount() as dy):
            return "+".join(_format_arrow(*side) for side in ((dx, "←", "→"), (dy, "↑", "↓")) if side[0].value)
        case "rotate", (float() as degrees,):
            return ("↻" if degrees > 0 else "↺") + format_number(abs(degrees))
        case (("zoom" | "gamma"), (float() as value,)):
            return {"zoom": "×", "gamma": "γ"}[name] + format_number(value)
        case "channels", (str() as order,):
            return order.upper()
    return None


def _is_channel_order(piece: str) -> bool:
    return sorted(piece) == ["B", "G", "R"]


def _is_horizontal(arrow: str) -> bool:
    return arrow in "←→"


def _format_shift(distances: dict[str, str]) -> str:
    sides = {"x": "0", "y": "0"}
    for arrow, distance in distances.items():
        sign = sum(_DIRECTIONS[arrow])
        sides["x" if _is_horizontal(arrow) else "y"] = _negate(distance) if sign < 0 else distance
    return f"shift:{sides['x']},{sides['y']}"


def _negate(distance: str) -> str:
    return distance.removeprefix("-") if distance.startswith("-") else f"-{distance}"


def _rewrite_step(piece: str) -> str:
    sign, value = piece[:1], piece[1:]
    match sign:
        case "⇔":
            return f"hflip{value}"
        case "⇕":
            return f"vflip{value}"
        case "↻":
            return f"rotate:{value}"
        case "↺":
            return f"rotate:{_negate(value)}"
        case "×":
            return f"zoom:{value}"
        case "γ":
            return f"gamma:{value}"
    if piece == "x":
        return "identity"
    return f"channels:{piece.lower()}" if _is_channel_order(piece) else piece


def _format_arrow(distance: Amount, negative: str, positive: str) -> str:
    return (negative if distance.value < 0 else positive) + format_argument(
        Amount(abs(distance.value), distance.percent)
    )
