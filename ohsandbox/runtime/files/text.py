"""Text files: decoding that keeps all bytes outside an edit, and reading some lines of a large file.

No decoding is trusted: `Document.splice` encodes the text before and after the edit and compares it with the bytes
read. A wrong guess of the encoding therefore affects only the shown text, never bytes outside the edit.
"""

from __future__ import annotations

import codecs
import re
from dataclasses import dataclass
from functools import cached_property
from importlib.resources import files
from typing import TYPE_CHECKING, NamedTuple

from ohsandbox.content import DEFAULT_LIMITS
from ohsandbox.errors import ToolError

if TYPE_CHECKING:
    from ohsandbox.runtime.base import Runtime

_SNIFFED_BYTES = 8192
"""Size of the prefix in which a NUL means binary: git checks 8,000 bytes, GNU grep its first buffer of 32 KiB."""

_MAX_CONTROL_SHARE = 0.05
"""Maximum share of control characters in legacy text; in compressed data one byte in nine is one."""

_FALLBACK = "cp1252"
"""The most frequent encoding of undeclared text that is not UTF-8."""

_PROVABLE = ("cp1252", "cp1251", "koi8-r", "gb18030", "shift_jis", "euc_jp", "euc_kr", "big5", "cp1250", "cp1253")
"""Encodings tried in the search for a text that the model knows, the common ones first."""

_BOMS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
"""Byte order marks; that of UTF-32-LE begins with that of UTF-16-LE, so it comes first."""

_DECLARED = re.compile(rb"(?:coding|charset)\s*[:=]\s*[\"']?([A-Za-z][\w.-]*)")
"""A declared encoding: PEP 263, Emacs and vim modelines, XML declarations, HTML meta elements."""

_OF_FILES = re.compile(
    r"ascii|utf-8(-sig)?|utf-(16|32)(-[bl]e)?|iso8859-\d+|cp\d+|koi8-[rtu]|mac-\w+|tis-620|kz1048|ptcp154"
    r"|gb2312|gbk|gb18030|big5(hkscs)?|shift_jis\w*|euc_\w+|johab"
)
"""Python's stateless codecs with linear time; with others, a file that declares `punycode` could block us."""

_PART_TIMEOUT_S = 10.0
"""Seconds for finding lines; GNU tail reads about 1 GB a second. A longer search is a task for a shell."""

_PART = files("ohsandbox.runtime").joinpath("scripts/part.sh").read_text("utf-8")
_SURROGATE = re.compile("[\ud800-\udfff]")
_CONTROL = bytes({*range(0x20), 0x7F} - {0x08, 0x09, 0x0A, 0x0C, 0x0D, 0x1B})


def count_lines(text: str) -> int:
    """Return the number of lines; only a line feed ends a line, as for `sed`, and the last line may lack it."""
    return text.count("\n") + (text != "" and not text.endswith("\n"))


def line_start(text: str, number: int) -> int:
    """Return the start index of the line; the end of the text for the line after the last."""
    at = 0
    for _ in range(number - 1):
        at = text.find("\n", at) + 1
        if at == 0:
            return len(text)
    return at


class NotTextError(ToolError):
    """The bytes are not text, or not in the requested encoding; the message continues after "is "."""


class Splice(NamedTuple):
    """A change of bytes: at `offset`, `added` replaces `removed`."""

    offset: int
    removed: bytes
    added: bytes


@dataclass(frozen=True)
class Document:
    """The text of a file."""

    data: bytes
    bom: bytes
    encoding: str
    text: str
    """The text, in which lone surrogates stand for bytes without a character in the encoding (PEP 383)."""
    guessed: bool = False
    """Whether the encoding was guessed because the file does not declare it."""

    @cached_property
    def shown(self) -> str:
        """The text with U+FFFD for undecodable bytes; every other character keeps its index."""
        return shown(self.text)

    @cached_property
    def has_crlf(self) -> bool:
        """Whether any line ends in CRLF."""
        return "\r\n" in self.text

    @property
    def line_count(self) -> int:
        """Number of lines; the last one may lack its line feed."""
        return count_lines(self.text)

    @property
    def remarks(self) -> list[str]:
        """Unusual properties of the file: encoding, byte order mark, line ends."""
        remarks = []
        if self.encoding != "utf-8":
            guess = ", a guess: pass `encoding` if it reads wrong" if self.guessed else ""
            remarks.append(f"decoded as {_encoding_label(self.encoding)}{guess}")
        elif not _is_clean(self.text):
            remarks.append("\ufffd stands for a byte that is not UTF-8")
        if self.bom:
            remarks.append("byte order mark")
        if self.has_crlf:
            is_mixed = self.text.count("\r\n") < self.text.count("\n")
            remarks.append("mixed CRLF and LF line ends" if is_mixed else "CRLF line ends")
        return remarks

    def splice(self, start: int, end: int, new: str) -> Splice:
        """Return the change of bytes that replaces text[start:end] by new.

        Raises:
            ToolError: new has a character that the encoding lacks, or bytes outside the edit would change.
        """
        head, tail = self.bom + self._encode(self.text[:start]), self._encode(self.text[end:])
        added = self._encode(new)
        stop = len(self.data) - len(tail)
        if stop < len(head) or not (self.data.startswith(head) and self.data.endswith(tail)):
            raise ToolError(
                f"In {_encoding_label(self.encoding)} other bytes of the file would change with this edit; nothing was "
                f"changed. Edit it with execute_bash, or convert it first: iconv -f {self.encoding} -t UTF-8."
            )
        return Splice(len(head), self.data[len(head) : stop], added)

    def index_of(self, offset: int) -> int:
        """Return the index in the text of the character whose bytes begin at offset."""
        return len(self.data[len(self.bom) : offset].decode(self.encoding, _errors(self.encoding)))

    def _encode(self, text: str) -> bytes:
        return _encode(text, self.encoding)


def shown(text: str) -> str:
    """Return the text with U+FFFD for each lone surrogate."""
    return text if _is_clean(text) else _SURROGATE.sub("\ufffd", text)


def encode_new(text: str, encoding: str | None) -> bytes:
    """Return the bytes of a new file: UTF-8 if no encoding is given; UTF-16 and UTF-32 begin with a byte order mark.

    Raises:
        ToolError: the encoding is unknown, or lacks a character of text.
    """
    name = _codec(encoding or "utf-8")
    bom = next(mark for mark, of in _BOMS if of == name) if name.startswith(("utf-16", "utf-32")) else b""
    return bom + _encode(text, name)


def _encode(text: str, name: str) -> bytes:
    try:
        return text.encode(name, _errors(name))
    except UnicodeEncodeError as error:
        lacking = error.object[error.start]
        raise ToolError(
            f"{lacking!r} (U+{ord(lacking):04X}) cannot be written in {_encoding_label(name)}, the file's encoding; "
            "nothing was changed. Use other characters, pass the right `encoding`, or convert the file first: "
            f"iconv -f {name} -t UTF-8."
        ) from None


def decode(data: bytes, *, encoding: str | None = None) -> Document:
    """Decode data; a given encoding is used as it is.

    Without one: that of a byte order mark, else UTF-8, else the one that the file declares, else UTF-8 if there are
    only some other bytes, else windows-1252.

    Raises:
        NotTextError: data is binary, or not in the given encoding.
        ToolError: the encoding is unknown.
    """
    if encoding is not None:
        return _decode_as(data, _codec(encoding))
    for bom, name in _BOMS:
        if data.startswith(bom) and (found := _try(data, name, bom=bom)):
            return found
    if b"\0" in data[:_SNIFFED_BYTES]:
        raise NotTextError(f"a binary file of {len(data)} bytes")
    return _try(data, "utf-8") or _try_declared(data) or _decode_legacy(data)


def decodings(data: bytes) -> list[Document]:
    """Return the possible decodings of data other than UTF-8, for a search for known text that proves one of them."""
    return [found for name in _PROVABLE if (found := _try(data, name))]


def _decode_as(data: bytes, name: str) -> Document:
    bom = next((bom for bom, of in _BOMS if of[:6] == name[:6] and data.startswith(bom)), b"")
    if bom:
        name = dict(_BOMS)[bom]
    if found := _try(data, name, bom=bom):
        return found
    raise NotTextError(f"no {_encoding_label(name)} text: it has bytes that this encoding does not")


def _decode_legacy(data: bytes) -> Document:
    mostly = data.decode("utf-8", "surrogateescape")
    wrong = len(_SURROGATE.findall(mostly))
    right = sum(len(found) for found in re.findall("[^\x00-\x7f\ud800-\udfff]+", mostly))
    if right >= wrong:
        return Document(data, b"", "utf-8", mostly)
    sample = data[:_SNIFFED_BYTES]
    if len(sample) - len(sample.translate(None, _CONTROL)) > _MAX_CONTROL_SHARE * len(sample):
        raise NotTextError(f"a binary file of {len(data)} bytes")
    return Document(data, b"", _FALLBACK, data.decode(_FALLBACK, "surrogateescape"), guessed=True)


def _try_declared(data: bytes) -> Document | None:
    declared = _DECLARED.search(data, 0, 1024)
    if declared is None:
        return None
    try:
        return _try(data, _codec(declared[1].decode()))
    except ToolError:
        return None


def _try(data: bytes, name: str, *, bom: bytes = b"") -> Document | None:
    try:
        return Document(data, bom, name, data[len(bom) :].decode(name, "strict"))
    except UnicodeError:
        return None


def _codec(name: str) -> str:
    """Return Python's name of an encoding used for files."""
    try:
        found = codecs.lookup(name).name
    except (LookupError, ValueError):
        found = ""
    if not _OF_FILES.fullmatch(found):
        raise ToolError(
            f"Encoding {name[:50]!r} is not known here. Use a name such as utf-8, latin-1, cp1251, shift_jis, gb18030."
        )
    return {"utf-8-sig": "utf-8", "ascii": "utf-8", "utf-16": "utf-16-le", "utf-32": "utf-32-le"}.get(found, found)


def _errors(name: str) -> str:
    """Return the codec's error handler: UTF-16 and UTF-32 have no single bytes to escape."""
    return "strict" if name.startswith(("utf-16", "utf-32")) else "surrogateescape"


def _encoding_label(name: str) -> str:
    if name.startswith("cp125"):
        return f"windows-{name[2:]}"
    return name.removesuffix("-le").removesuffix("-be").upper() if name.startswith("utf") else name


def _is_clean(text: str) -> bool:
    """Whether text has no lone surrogate; a regex search takes 0.1 s for 20 MB, this no time for ASCII."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


class Part(NamedTuple):
    """The lines that `read_part` found."""

    size_bytes: str
    """The size of the whole file, as `ls` reports it."""
    text: str
    """The lines from the first requested one, up to four bytes for each character of the limit."""


def read_part(
    runtime: Runtime,
    path: str,
    view_range: tuple[int, ...] | None,
    *,
    limit_chars: int = DEFAULT_LIMITS.max_chars,
) -> Part:
    """Read the lines of view_range (None: from the first line) of a file that is too large to transfer.

    They are found in the sandbox.

    Raises:
        ToolError: the file is binary, has no such lines, or they were not reached in _PART_TIMEOUT_S seconds.
    """
    first, last = view_range or (1, -1)
    limit_bytes = 4 * limit_chars
    count = limit_bytes if last == -1 else min(last - first + 1, limit_bytes)
    argv = ["sh", "-c", _PART, "sh", path, str(first), str(count), str(limit_bytes)]
    result = runtime.run(argv, timeout_s=_PART_TIMEOUT_S)
    head, _, rest = result.stdout.partition(b"\n")
    size = head.decode("ascii", "replace")
    if b"\0" in rest[:_SNIFFED_BYTES]:
        raise ToolError(f"{path!r} is a binary file of {size} bytes. Look into it with execute_bash: file, xxd | head.")
    if result.timed_out or result.exit_code:
        raise ToolError(
            f"{path!r} has {size} bytes; its line {first} was not reached in {_PART_TIMEOUT_S:.0f} s. Use sed -n in "
            "execute_bash with a longer timeout."
        )
    text = rest[_SNIFFED_BYTES:].decode("utf-8", "replace")
    if not text:
        raise ToolError(f"{path!r} has {size} bytes and no line {first}. Start lower.")
    return Part(size, text)
