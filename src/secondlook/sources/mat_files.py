"""Reading MATLAB files."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from secondlook.errors import SourceError


def read_mat(path: Path, variables: Sequence[str], *, squeeze: bool = False) -> dict[str, Any]:
    """Read the named variables of a MATLAB file (up to version 7)."""
    from scipy.io import loadmat
    from scipy.io.matlab import MatReadError

    try:
        content = loadmat(path, variable_names=list(variables), squeeze_me=squeeze)
    except (OSError, ValueError, TypeError, LookupError, NotImplementedError, MatReadError) as error:
        raise SourceError(
            f"{str(path)!r} cannot be read as a MATLAB file: {error or type(error).__name__}; get the official file"
            " again."
        ) from error
    for name in variables:
        if name not in content:
            raise SourceError(f"{str(path)!r} has no variable {name!r}; get the official file again.")
    return dict(content)
