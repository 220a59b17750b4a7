"""Small valid files of each supported media type, built by code."""

from __future__ import annotations

import struct
import zlib


def png(marker: str = "", *, width: int = 2, height: int = 2) -> bytes:
    """Return a grey PNG; `marker` is contained as a text chunk, so that the bytes can be searched for it."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    rows = zlib.compress(b"".join(b"\0" + b"\x80" * width for _ in range(height)))
    text = chunk(b"tEXt", b"Comment\0" + marker.encode()) if marker else b""
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + text + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


def jpeg(*, width: int = 2, height: int = 2) -> bytes:
    """Return the headers and the end of a JPEG."""
    application = b"\xff\xe0" + struct.pack(">H", 16) + b"JFIF\0\1\1\0\0\1\0\1\0\0"
    frame = b"\xff\xc0" + struct.pack(">HBHHB", 11, 8, height, width, 1) + b"\1\x11\0"
    return b"\xff\xd8" + application + frame + b"\xff\xda\0\x08\1\1\0\0\x3f\0\x00\xff\xd9"


def gif(*, width: int = 2, height: int = 2) -> bytes:
    """Return the header and the end of a GIF."""
    return b"GIF89a" + struct.pack("<HH", width, height) + b"\0\0\0;"


def webp(*, width: int = 2, height: int = 2) -> bytes:
    """Return an extended WebP header."""
    sizes = (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little")
    return _riff(b"WEBPVP8X" + struct.pack("<I", 10) + b"\0\0\0\0" + sizes)


def pdf(pages: int = 1, marker: str = "") -> bytes:
    """Return a PDF with empty pages."""
    objects = b"".join(b"%d 0 obj <</Type /Page /Parent 1 0 R>> endobj\n" % number for number in range(3, pages + 3))
    return b"%PDF-1.7\n%" + marker.encode() + b"\n1 0 obj <</Type /Pages>> endobj\n" + objects + b"trailer\n%%EOF\n"


def wav(seconds: float = 0.5, *, rate: int = 8000) -> bytes:
    """Return silence with 8 bits a sample."""
    samples = b"\x80" * int(seconds * rate)
    header = b"fmt " + struct.pack("<IHHIIHH", 16, 1, 1, rate, rate, 1, 8)
    return _riff(b"WAVE" + header + b"data" + struct.pack("<I", len(samples)) + samples)


def mp3() -> bytes:
    """Return an ID3 tag and one frame header."""
    return b"ID3\4\0\0\0\0\0\0" + b"\xff\xfb\x90\0" + b"\0" * 413


def ogg() -> bytes:
    """Return the first page of an Ogg stream."""
    return b"OggS" + b"\0" * 24


def flac() -> bytes:
    """Return a FLAC stream without frames."""
    return b"fLaC\x80\0\0\x22" + b"\0" * 34


def _riff(body: bytes) -> bytes:
    return b"RIFF" + struct.pack("<I", len(body)) + body


SAMPLES = {
    "image/png": png(),
    "image/jpeg": jpeg(),
    "image/gif": gif(),
    "image/webp": webp(),
    "application/pdf": pdf(),
    "audio/wav": wav(),
    "audio/mpeg": mp3(),
    "audio/ogg": ogg(),
    "audio/flac": flac(),
}
"""A file of each media type."""
