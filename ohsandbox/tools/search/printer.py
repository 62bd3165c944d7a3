r"""A tree of `dialect` as ripgrep and `grep -E` read it: both in bytes, so that no locale has a say.

Text is taken as UTF-8: a character outside ASCII is its sequence of bytes. A line may end in `\r` and the first one
begin with a byte order mark; `$` and `^` look past them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ohsandbox.tools.search.dialect import LAST, Anchor, Chars, Choice, Node, Ranges, Repeat, Sequence

if TYPE_CHECKING:
    from collections.abc import Iterator

ByteRange = tuple[int, int]

BYTE_ORDER_MARK = "\ufeff"
_ASCII_END = 0x7F
_SPECIAL_IN_ERE = rb".[\()*+?{|^$"
_SPECIAL_IN_BRACKETS = frozenset(b"]^-[")
_WIDTHS = ((0x80, 0x7FF), (0x800, 0xFFFF), (0x10000, LAST))
"""Code points of two, three and four bytes (RFC 3629, section 3)."""


class Printer:
    """How one syntax writes things; the base is ERE in the C locale."""

    group = b"("
    unseen: tuple[ByteRange, ...] = ()
    """What a negated class must name although no line holds it."""

    def write(self, node: Node) -> bytes:
        """The node, to stand in a sequence."""
        if isinstance(node, Chars):
            return self._chars(node)
        if isinstance(node, Anchor):
            return self._anchor(node.kind)
        if isinstance(node, Sequence):
            return b"".join(map(self.write, node.parts))
        if isinstance(node, Choice):
            return self._choice([self.write(option) for option in node.options])
        return self._repeat(node)

    def _choice(self, options: list[bytes]) -> bytes:
        """An empty option is written as `?`: POSIX leaves `(a|)` undefined."""
        filled = [option for option in options if option]
        if not filled:
            return b""
        joined = self.group + b"|".join(filled) + b")"
        return joined if len(filled) == len(options) else joined + b"?"

    def _repeat(self, node: Repeat) -> bytes:
        inner, least = self.write(node.node), node.least
        if not inner:
            return b""
        grouped = inner if _is_one_byte(node.node) else self.group + inner + b")"
        if node.most is None and isinstance(node.node, Chars) and _has_all_above_ascii(node.node.ranges):
            # bytes do for an unlimited run: what stands before and after it begins and ends between characters
            run = self._negated_bytes(node.node.ranges) + b"*"
            return {0: b"", 1: grouped}.get(least, grouped + b"{%d}" % least) + run
        simple = {(0, None): b"*", (1, None): b"+", (0, 1): b"?"}.get((least, node.most))
        return grouped + (simple or b"{%d,%s}" % (least, b"" if node.most is None else b"%d" % node.most))

    def _chars(self, node: Chars) -> bytes:
        ascii_part = tuple((low, min(high, _ASCII_END)) for low, high in node.ranges if low <= _ASCII_END)
        options = [self._bytes(ascii_part)] if ascii_part else []
        options += [b"".join(self._bytes((part,)) for part in parts) for parts in utf8_sequences(node.ranges)]
        return options[0] if len(options) == 1 else self.group + b"|".join(options) + b")"

    def _anchor(self, kind: str) -> bytes:
        if kind == "^":
            mark = b"".join(self._bytes(((byte, byte),)) for byte in BYTE_ORDER_MARK.encode())
            return b"^" + self.group + mark + b")?"
        if kind == "$":
            return self.group + self._bytes(((13, 13),)) + b"?$)"
        return b"\\" + kind.encode()

    def _bytes(self, ranges: tuple[ByteRange, ...]) -> bytes:
        """One byte out of ranges."""
        if len(ranges) == 1 and ranges[0][0] == ranges[0][1]:
            return self._literal(ranges[0][0])
        return b"[" + self._inside(ranges) + b"]"

    def _literal(self, byte: int) -> bytes:
        raw = bytes([byte])
        return b"\\" + raw if raw in [bytes([special]) for special in _SPECIAL_IN_ERE] else raw

    def _inside(self, ranges: tuple[ByteRange, ...]) -> bytes:
        """In an ERE's brackets nothing can be escaped: `]` goes first, `^` behind something, `-` last."""
        singles, spans = set[int](), b""
        for low, high in ranges:
            while low <= high and low in _SPECIAL_IN_BRACKETS:
                singles.add(low)
                low += 1  # noqa: PLW2901 - the range shrinks
            while low <= high and high in _SPECIAL_IN_BRACKETS:
                singles.add(high)
                high -= 1  # noqa: PLW2901
            if low <= high:
                spans += bytes([low]) if low == high else bytes([low, ord("-"), high])
        order = [byte for byte in b"[^-" if byte in singles]
        if order[:1] == [ord("^")] and not spans and ord("]") not in singles:
            order.reverse()
        return (b"]" if ord("]") in singles else b"") + spans + bytes(order)

    def _negated_bytes(self, ranges: Ranges) -> bytes:
        """Any byte but the ASCII characters that ranges lack."""
        missing = self.unseen + _missing_ascii(ranges)
        return b"[^" + self._inside(missing) + b"]" if missing else b"."


class RustPrinter(Printer):
    """ripgrep's syntax, for `--no-unicode`."""

    group = b"(?:"
    unseen = ((10, 10),)

    def _literal(self, byte: int) -> bytes:
        return bytes([byte]) if chr(byte).isalnum() and byte <= _ASCII_END else b"\\x%02x" % byte

    def _inside(self, ranges: tuple[ByteRange, ...]) -> bytes:
        return b"".join(
            self._literal(low) if low == high else self._literal(low) + b"-" + self._literal(high)
            for low, high in ranges
        )


def utf8_sequences(ranges: Ranges) -> Iterator[tuple[ByteRange, ...]]:
    """Byte ranges in a row, which together are exactly the UTF-8 of the code points above ASCII in ranges."""
    for low, high in ranges:
        for first, last in _WIDTHS:
            if max(low, first) <= min(high, last):
                yield from _split(
                    chr(max(low, first)).encode("utf-8", "surrogatepass"),
                    chr(min(high, last)).encode("utf-8", "surrogatepass"),
                )


def _split(low: bytes, high: bytes) -> Iterator[tuple[ByteRange, ...]]:
    """Sequences from low to high, which are equally long: those that share a first byte, and the whole ones between."""
    if len(low) == 1:
        yield ((low[0], high[0]),)
        return
    rest = len(low) - 1
    if low[0] == high[0]:
        yield from (((low[0], low[0]), *tail) for tail in _split(low[1:], high[1:]))
        return
    first, last = low[0], high[0]
    if low[1:] != b"\x80" * rest:
        yield from (((first, first), *tail) for tail in _split(low[1:], b"\xbf" * rest))
        first += 1
    top: list[tuple[ByteRange, ...]] = []
    if high[1:] != b"\xbf" * rest:
        top = [((last, last), *tail) for tail in _split(b"\x80" * rest, high[1:])]
        last -= 1
    if first <= last:
        yield ((first, last), *[(0x80, 0xBF)] * rest)
    yield from top


def _missing_ascii(ranges: Ranges) -> tuple[ByteRange, ...]:
    """What ranges lack of ASCII, newline and NUL apart, which no line and no pattern holds."""
    out, start = [], 1
    for low, high in (*ranges, (_ASCII_END + 1, LAST)):
        if start < low:
            out.append((start, min(low - 1, _ASCII_END)))
        start = high + 1
        if start > _ASCII_END:
            break
    return tuple(
        piece for low, high in out for piece in ((low, min(high, 9)), (max(low, 11), high)) if piece[0] <= piece[1]
    )


def _has_all_above_ascii(ranges: Ranges) -> bool:
    low, high = ranges[-2] if len(ranges) > 1 else (0, 0)
    return low <= _ASCII_END + 1 and (high, *ranges[-1]) == (0xD7FF, 0xE000, LAST)


def _is_one_byte(node: Node) -> bool:
    return isinstance(node, Chars) and node.ranges[-1][1] <= _ASCII_END


def ere(node: Node) -> str:
    """For `grep -E` under LC_ALL=C; its bytes above ASCII as surrogate escapes."""
    return Printer().write(node).decode("ascii", "surrogateescape")


def rust(node: Node) -> str:
    """For `rg --no-unicode --text`."""
    return RustPrinter().write(node).decode("ascii")
