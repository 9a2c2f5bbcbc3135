"""Media types of image files, by their first bytes."""

from secondlook.serving.faults import RequestError

MEDIA_TYPES = {
    b"\xff\xd8\xff": "image/jpeg",
    b"\x89PNG\r\n\x1a\n": "image/png",
    b"BM": "image/bmp",
    b"II*\0": "image/tiff",
    b"MM\0*": "image/tiff",
}
OF_BROWSERS = ("image/jpeg", "image/png", "image/webp", "image/bmp")
"""Those that every browser shows."""


def find_media_type(content: bytes, where: str) -> str:
    """Return the media type of an image file, or raise an error if it is none."""
    if content[:4] == b"RIFF" and content[8:12] == b"WEBP":
        return "image/webp"
    found = next((kind for start, kind in MEDIA_TYPES.items() if content.startswith(start)), None)
    if found is None:
        raise RequestError(
            422,
            "unreadable_image",
            f"{where} is not an image; expected the bytes of a JPEG, PNG, WebP, BMP or TIFF file.",
        )
    return found
