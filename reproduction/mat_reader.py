"""Reads arrays of a MATLAB file, as a separate program, because scipy crashes on some damaged files.

Standard input is the file; the arguments are the maximum number of bytes of memory and the names of the arrays,
VARIABLE or STRUCTURE.FIELD. The arrays are written to standard output one after the other in NumPy's format, and the
reason of a failure to standard error.
"""

import sys
from typing import Any

import numpy as np


def main(max_bytes: str, *names: str) -> None:
    """Write the named arrays of a MATLAB file (up to version 7) to standard output."""
    _limit_memory(int(max_bytes))
    from scipy.io import loadmat

    file: Any = sys.stdin.buffer
    content = loadmat(file, variable_names=[name.partition(".")[0] for name in names])
    for name in names:
        np.save(sys.stdout.buffer, _find_array(content, name), allow_pickle=False)


def _limit_memory(max_bytes: int) -> None:
    try:
        import resource
    except ImportError:  # Windows
        return
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    limit = max_bytes if hard == resource.RLIM_INFINITY else min(max_bytes, hard)
    resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _find_array(content: dict[str, Any], name: str) -> Any:
    variable, _, field = name.partition(".")
    if variable not in content:
        raise LookupError(f"no variable {variable!r}")
    array = content[variable]
    if not field:
        return array
    fields = array.dtype.names or ()
    if field not in fields:
        raise LookupError(f"no field {field!r} in {variable!r}; its fields: {', '.join(fields) or 'none'}")
    # Each value is a separate array.
    return np.array([np.asarray(value).item() for value in array[field].ravel()])


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except Exception as error:  # noqa: BLE001 - the parent process can use nothing but the message
        sys.exit(str(error) or type(error).__name__)
