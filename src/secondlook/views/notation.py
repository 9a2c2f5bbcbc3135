"""The paper's own notation: arrows for flips and shifts, ↻ ↺ for turns, × for zoom, γ for gamma, BGR for channels."""

from secondlook.views.arguments import Amount, Argument, argument_text, number_text

_SIGNS = "⇔⇕←→↑↓↻↺×γ"
_DIRECTIONS = {"←": (-1, 0), "→": (1, 0), "↑": (0, -1), "↓": (0, 1)}


def is_paper_token(piece: str) -> bool:
    """Tell whether a step is written in the paper's notation."""
    return piece == "x" or piece[:1] in tuple(_SIGNS) or _is_channel_order(piece)


def rewrite_paper_notation(pieces: list[str]) -> list[str]:
    """Return the same steps in secondlook's text; '←2' beside '↓1' is one shift, as in the paper."""
    rewritten: list[str] = []
    waiting: tuple[str, str] | None = None  # an arrow that the next one may complete
    for piece in pieces:
        arrow, distance = piece[:1], piece[1:]
        if arrow in _DIRECTIONS and waiting and _is_horizontal(arrow) != _is_horizontal(waiting[0]):
            rewritten[-1] = _shift_text(dict([waiting, (arrow, distance)]))
            waiting = None
        elif arrow in _DIRECTIONS:
            rewritten.append(_shift_text({arrow: distance}))
            waiting = (arrow, distance)
        else:
            rewritten.append(_plain_text(piece))
            waiting = None
    return rewritten


def in_paper_notation(name: str, arguments: tuple[Argument | Amount, ...]) -> str | None:
    """Write one step as the paper would, or return None where it has no sign for it."""
    match name, arguments:
        case "hflip", ():
            return "⇔"
        case "vflip", ():
            return "⇕"
        case "shift", (Amount() as dx, Amount() as dy):
            return "+".join(_arrow(*side) for side in ((dx, "←", "→"), (dy, "↑", "↓")) if side[0].value)
        case "rotate", (float() as degrees,):
            return ("↻" if degrees > 0 else "↺") + number_text(abs(degrees))
        case (("zoom" | "gamma"), (float() as value,)):
            return {"zoom": "×", "gamma": "γ"}[name] + number_text(value)
        case "channels", (str() as order,):
            return order.upper()
    return None


def _is_channel_order(piece: str) -> bool:
    return sorted(piece) == ["B", "G", "R"]


def _is_horizontal(arrow: str) -> bool:
    return arrow in "←→"


def _shift_text(distances: dict[str, str]) -> str:
    sides = {"x": "0", "y": "0"}
    for arrow, distance in distances.items():
        sign = sum(_DIRECTIONS[arrow])
        sides["x" if _is_horizontal(arrow) else "y"] = _negated(distance) if sign < 0 else distance
    return f"shift:{sides['x']},{sides['y']}"


def _negated(distance: str) -> str:
    return distance.removeprefix("-") if distance.startswith("-") else f"-{distance}"


def _plain_text(piece: str) -> str:
    sign, value = piece[:1], piece[1:]
    match sign:
        case "⇔":
            return f"hflip{value}"
        case "⇕":
            return f"vflip{value}"
        case "↻":
            return f"rotate:{value}"
        case "↺":
            return f"rotate:{_negated(value)}"
        case "×":
            return f"zoom:{value}"
        case "γ":
            return f"gamma:{value}"
    if piece == "x":
        return "identity"
    return f"channels:{piece.lower()}" if _is_channel_order(piece) else piece


def _arrow(distance: Amount, negative: str, positive: str) -> str:
    return (negative if distance.value < 0 else positive) + argument_text(Amount(abs(distance.value), distance.percent))
