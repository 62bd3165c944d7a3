"""What a cell shows: values, images, figures, tracebacks."""
# ruff: noqa: T201, BLE001, PLC0415 - it prints for a living, cells raise anything, and what few cells need loads late

from __future__ import annotations

import base64
import contextlib
import importlib.util
import io
import re
import sys
import traceback
from typing import Any

MAX_IMAGES = 8
"""Limit per cell; each image costs a model some 1,500 tokens."""
MAX_IMAGE_BYTES = 3_750_000
"""5 MB in base64, the limit of the strictest large provider."""
MAX_FRAMES = 20
"""Limit per traceback; the end of a long one says more than its beginning."""
LINE_CHARS = 80
"""A repr up to this length stays on one line."""
LAYOUT_CHARS = 20_000
"""A longer repr is not laid out: pprint is quadratic in places, and the middle is cut out anyway."""

IMAGE_TYPES = {"image/png": b"\x89PNG", "image/jpeg": b"\xff\xd8\xff", "image/gif": b"GIF8", "image/webp": b"RIFF"}
"""The image types that models accept, with the first bytes of their files. Of several representations of a value, the
first that is small enough is shown."""
SOURCE_TYPES = ("text/markdown", "text/latex", "text/html", "application/json", "image/svg+xml")
"""Shown as source if an object's plain text says nothing."""
REPR_METHODS = {
    "image/png": "_repr_png_",
    "image/jpeg": "_repr_jpeg_",
    "image/svg+xml": "_repr_svg_",
    "text/html": "_repr_html_",
    "text/markdown": "_repr_markdown_",
    "text/latex": "_repr_latex_",
    "application/json": "_repr_json_",
}
LAID_OUT = (dict, list, tuple, set, frozenset)

CELL = "<cell "
"""The prefix of the file names of cells."""
OURS = "<ohsandbox>"
"""The file name of the kernel itself."""
AWAITED_IN = "_ohsandbox_awaited_in"
"""Attribute of an interrupt: the frames of the coroutine that was suspended, with their lines."""

_BARE = re.compile(r"(<[^<>]*( at 0x[0-9a-f]+| object|Axes|Axes>|Image.*)>)?")
"""A text that says only what type of object this is."""


class Gallery:
    """The images of one cell. A line in the text marks the place of each."""

    def __init__(self) -> None:
        self.images: list[dict[str, str]] = []
        self.count = 0

    def show(self, bundle: dict[str, Any], prompt: str = "") -> None:
        """Print the text of a MIME bundle, and keep its image."""
        image, text = self._image(bundle), str(bundle.get("text/plain") or "")
        if _BARE.fullmatch(text):
            sources = (bundle[kind] for kind in SOURCE_TYPES if isinstance(bundle.get(kind), (str, dict, list)))
            text = str(next(sources, text))
        if image and _BARE.fullmatch(text):
            print(prompt + image)
            return
        print(prompt + ("\n" if prompt and "\n" in text else "") + text)
        if image:
            print(image)

    def _image(self, bundle: dict[str, Any]) -> str:
        """Keep the bundle's image; return the line that marks its place."""
        offered = [(kind, data) for kind in IMAGE_TYPES if (data := _image_bytes(kind, bundle.get(kind)))]
        if not offered:
            return ""
        self.count += 1
        kind, data = next((candidate for candidate in offered if len(candidate[1]) <= MAX_IMAGE_BYTES), offered[0])
        left_out = f"[Image {self.count} left out: "
        if len(data) > MAX_IMAGE_BYTES:
            return f"{left_out}{len(data)} bytes, at most {MAX_IMAGE_BYTES} are shown; scale it down]"
        if len(self.images) == MAX_IMAGES:
            return f"{left_out}at most {MAX_IMAGES} are shown of one cell]"
        self.images.append({"type": kind, "data": base64.b64encode(data).decode()})
        return f"[Image {self.count}: {kind}, {len(data)} bytes]"


gallery = Gallery()


def _image_bytes(kind: str, data: Any) -> bytes:
    """Return the bytes of an image of that kind, else b""; text is base64, as in Jupyter's protocol."""
    with contextlib.suppress(ValueError):
        data = base64.b64decode(data) if isinstance(data, str) else data
    return data if isinstance(data, bytes) and data.startswith(IMAGE_TYPES[kind]) else b""


def bundle_of(value: Any) -> dict[str, Any]:
    """The value's representations by MIME type, by IPython's display protocol; those that fail are left out."""
    bundle: dict[str, Any] = {"text/plain": pretty(value)}
    if isinstance(value, type):
        return bundle
    if type(value).__module__ == "matplotlib.figure" and hasattr(value, "savefig"):
        return {**bundle, "image/png": figure_png(value)}
    with contextlib.suppress(Exception):
        bundle.update(_without_metadata(value._repr_mimebundle_(include=None, exclude=None)))
    for kind, name in REPR_METHODS.items():
        with contextlib.suppress(Exception):
            bundle.setdefault(kind, _without_metadata(getattr(value, name)()))
    return bundle


def _without_metadata(data: Any) -> Any:
    return data[0] if isinstance(data, tuple) else data


def pretty(value: Any) -> str:
    """Return the value's repr; a container that does not fit on one line is laid out over several."""
    text = repr(value)
    if LINE_CHARS < len(text) < LAYOUT_CHARS and type(value) in LAID_OUT:
        import pprint

        return pprint.pformat(value, width=100, compact=True, sort_dicts=False)
    return text


def display(*values: Any, **_: Any) -> None:
    """Show values: images as images, all else as text."""
    for value in values:
        gallery.show(bundle_of(value))


# --- matplotlib -------------------------------------------------------------------------------

_shown_figures: set[int] = set()


def figure_png(figure: Any) -> bytes:
    """Return the figure as PNG; it is not shown again at the end of the cell."""
    _shown_figures.add(id(figure))
    data = io.BytesIO()
    figure.savefig(data, format="png", bbox_inches="tight")
    return data.getvalue()


def show_figures(*_: Any, **__: Any) -> None:
    """Show and close all open figures: `pyplot.show()`, and the end of each cell."""
    pyplot: Any = sys.modules.get("matplotlib.pyplot")
    for number in pyplot.get_fignums() if hasattr(pyplot, "get_fignums") else ():
        figure = pyplot.figure(number)
        try:
            if figure.axes and id(figure) not in _shown_figures:
                gallery.show({"image/png": figure_png(figure)})
        finally:
            pyplot.close(figure)
    _shown_figures.clear()


class PyplotFinder:
    """Puts `show_figures` into pyplot when that is imported; the `show` of the Agg backend shows nothing."""

    searching = False

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:  # noqa: ARG002 - the import system's
        if name != "matplotlib.pyplot" or self.searching:
            return None
        self.searching = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self.searching = False
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def exec_module(module: Any) -> None:
            execute(module)
            module.show = show_figures

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


# --- errors -----------------------------------------------------------------------------------


class MagicError(Exception):
    """A magic that cannot be run; the message is for the model."""

    __module__ = "builtins"  # tracebacks then name it without a module


def print_error(error: BaseException) -> None:
    """Print the traceback from the cell's own first line on, without the frames of this kernel and of IPython."""
    if isinstance(error, KeyboardInterrupt):  # show where it hit the cell, not the inside of a library
        frames = getattr(error, AWAITED_IN, None) or [*traceback.walk_tb(error.__traceback__)]
        stack = traceback.StackSummary.extract(iter(frames))
        lines = traceback.format_list([frame for frame in stack if frame.filename.startswith(CELL)][-MAX_FRAMES:])
        head = ["Traceback (most recent call last):\n", *lines] if lines else []
        print("".join([*head, "KeyboardInterrupt"]), file=sys.stderr)
        return
    first = error.__traceback__
    while first is not None and not first.tb_frame.f_code.co_filename.startswith(CELL):
        first = first.tb_next
    frames = sum(1 for _ in traceback.walk_tb(first))
    if frames > MAX_FRAMES:
        print(f"[{frames - MAX_FRAMES} of {frames} frames left out]", file=sys.stderr)
    trace = traceback.TracebackException(type(error), error, first, limit=-MAX_FRAMES)
    _drop_our_frames(trace)
    without_frames = isinstance(error, (SystemExit, MagicError)) or not (
        trace.stack or trace.__cause__ or trace.__context__
    )
    print("".join(trace.format_exception_only() if without_frames else trace.format()), end="", file=sys.stderr)


def _drop_our_frames(trace: traceback.TracebackException | None, depth: int = 0) -> None:
    if trace is None or depth > MAX_FRAMES:
        return
    trace.stack[:] = [
        frame for frame in trace.stack if frame.filename != OURS and "/IPython/core/" not in frame.filename
    ]
    for linked in (trace.__cause__, trace.__context__, *(getattr(trace, "exceptions", None) or ())):
        _drop_our_frames(linked, depth + 1)


def summary(error: BaseException) -> str:
    """The error in one line."""
    try:
        return traceback.format_exception_only(type(error), error)[-1].strip()[:500]
    except Exception:
        return type(error).__name__
