"""Names of files made from ids and class names: fit for common file systems, and never the same for two."""

import hashlib
import re

LONGEST = 60


def safe_name(name: str, identity: str) -> str:
    """Return the name itself where the identity behind it is plain, else a readable form with a digest of the identity.

    Plain is a short text of small letters, digits and `_.-`: some file systems do not tell capitals from small letters.
    """
    if re.fullmatch(r"[a-z0-9_][a-z0-9_.-]*", identity) and len(identity) <= LONGEST and not identity.endswith("."):
        return name
    readable = re.sub(r"[^\w-]+", "_", name).strip("_-")[:LONGEST]
    return f"{readable or 'x'}-{hashlib.sha256(identity.encode(errors='surrogatepass')).hexdigest()[:12]}"
