"""A separate program: HTML on stdin, Markdown on stdout. Its arguments: the page's address, the library's directory.

It runs separately so that a page that exhausts a parser exhausts a process that can be killed. Exit code 0 is
success; with any other there is no usable Markdown.
"""

from __future__ import annotations

import contextlib
import resource
import sys

MAX_MEMORY_BYTES = 2 * 1024**3
"""5 MiB of the worst tables took 700 MB."""


def main() -> None:
    """Convert, or exit with an error."""
    sys.path += sys.argv[2:]  # of another user's or a --target installation, which isolated mode leaves out
    from html_to_markdown import ConversionOptions, convert  # noqa: PLC0415 - under the limit as well

    html = sys.stdin.buffer.read().decode("utf-8", "replace")
    options = ConversionOptions(extract_metadata=False, base_url=sys.argv[1], inline_data_media="alt_text_only")
    result = convert(html, options)
    if result.warnings:  # such as that elements nested deeper than 1024 were left out
        sys.exit("; ".join(warning.message for warning in result.warnings)[:500])
    sys.stdout.buffer.write((result.content or "").encode("utf-8", "replace"))


if __name__ == "__main__":
    with contextlib.suppress(ValueError, OSError):  # a lower limit may be set already
        resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY_BYTES, MAX_MEMORY_BYTES))
    main()
