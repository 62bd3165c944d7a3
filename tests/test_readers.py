"""Every parser that reads foreign text takes time in proportion to it, or is given no more than a bounded text.

The parsers are those that the package calls, as its source says, and not a list that somebody remembers.
"""

from __future__ import annotations

import ast
import base64
import contextlib
import datetime as dt
import email.utils
import fnmatch
import html
import io
import ipaddress
import json
import textwrap
import tokenize
import urllib.parse
import zlib
from tarfile import TarError
from tarfile import open as open_tar
from typing import TYPE_CHECKING, Any

import idna
import pyjson5
import pytest
import regex
import yaml
from pathspec import GitIgnoreSpec
from pathspec.patterns.gitignore.spec import GitIgnoreSpecPattern

from ohsandbox import strict_json, strict_toml, strict_yaml
from ohsandbox.cli.session.resume import SANDBOX_NAME, stored_options
from ohsandbox.cli.viewer.hosting import ADDRESS_NAME, hosted_at
from ohsandbox.conversation.storage import noted_container
from ohsandbox.conversation.storage.metadata import FileConversationStore
from ohsandbox.persistence.layout import CONTAINER_NOTE_NAME
from ohsandbox.runtime.workspace.branches import find_branches
from ohsandbox.text import quoted_brackets
from ohsandbox.tools.file_editor.history import EditHistory
from tests.patterns import modules
from tests.test_growth import SEEDS, _grows_too_fast

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

LIBRARIES = {
    "ast", "base64", "bs4", "codecs", "configparser", "csv", "datetime", "datetime.datetime",
    "difflib", "email", "email.utils", "fnmatch",
    "html", "html.parser", "idna", "ipaddress", "json", "lxml", "ohsandbox.strict_json", "ohsandbox.strict_toml",
    "ohsandbox.strict_yaml", "pathspec", "pickle", "plistlib", "pyjson5", "regex", "shlex", "tarfile", "textwrap",
    "tokenize", "tomllib", "unicodedata", "urllib.parse", "xml.etree.ElementTree", "yaml", "zipfile", "zlib",
}  # fmt: skip
"""Modules that parse; `re` is in test_patterns, and the parsers of models (`model_validate_json`) are in Rust."""
NO_PARSERS = {
    "ast": "Constant Expression comprehension expr stmt unparse walk",
    "base64": "b64encode",
    "codecs": "getincrementaldecoder lookup",
    "datetime": "date datetime timedelta",
    "datetime.datetime": "fromtimestamp isoformat max min now",
    "html": "escape",
    "json": "JSONDecodeError dumps",
    "ohsandbox.strict_json": "is_deep number_faults refuse_constant",
    "ohsandbox.strict_yaml": "amount mapping_or_empty text_of",
    "regex": "error",
    "shlex": "join quote",
    "unicodedata": "combining name",
    "urllib.parse": "quote quote_plus urlencode urlunsplit",
    "xml.etree.ElementTree": "indent tostring",
    "zlib": "crc32 error",
}
"""Functions of theirs that write, or look at one character or at parsed values."""


def _utf8(text: str) -> bytes:
    return text.encode("utf-8", "replace")


def _members_of_tar(text: str) -> None:
    with open_tar(fileobj=io.BytesIO(_utf8(text)), mode="r:") as archive:
        archive.getmembers()


LINEAR: dict[str, tuple[Callable[[str], Any], ...]] = {
    "ast.parse": (ast.parse,),
    "base64.b64decode": (lambda text: base64.b64decode(_utf8(text)),),
    "datetime.datetime.fromisoformat": (dt.datetime.fromisoformat,),
    "email.utils.parsedate_to_datetime": (email.utils.parsedate_to_datetime,),
    "html.unescape": (html.unescape,),
    "idna.encode": (lambda text: idna.encode(text, uts46=True),),
    "ipaddress.IPv4Address": (ipaddress.IPv4Address,),
    "ipaddress.IPv4Network": (ipaddress.IPv4Network, lambda text: ipaddress.IPv4Network(f"1.1.1.1/{text}")),
    "ipaddress.IPv6Network": (ipaddress.IPv6Network, lambda text: ipaddress.IPv6Network(f"::/{text}")),
    "ipaddress.ip_address": (ipaddress.ip_address,),
    "ipaddress.ip_network": (ipaddress.ip_network,),
    "json.JSONDecoder": (json.JSONDecoder(strict=False).raw_decode,),
    "ohsandbox.strict_json.bounded_integer": (strict_json.bounded_integer,),
    "ohsandbox.strict_json.finite": (strict_json.finite, lambda text: strict_json.finite(f"1.{text}")),
    "ohsandbox.strict_json.is_object": (strict_json.is_object,),
    "ohsandbox.strict_json.load_json": (
        strict_json.load_json,
        lambda text: strict_json.load_json(f"[{text}"),
        lambda text: strict_json.load_json(f'["{text}'),
    ),
    "ohsandbox.strict_json.parse_json": (strict_json.parse_json, lambda text: strict_json.parse_json(f"[{text}")),
    "ohsandbox.strict_toml.parse_toml": (
        strict_toml.parse_toml,
        lambda text: strict_toml.parse_toml(f"a = {text}"),
        lambda text: strict_toml.parse_toml(f"[{text}"),
        lambda text: strict_toml.parse_toml("\n".join(f"{text[:20]}{number} = 1" for number in range(len(text) // 20))),
    ),
    "ohsandbox.text.quoted_brackets": (
        lambda text: fnmatch.translate(quoted_brackets(text)),
        lambda text: fnmatch.fnmatchcase("id_rsa", quoted_brackets(f"[]{text}")),
    ),
    "ohsandbox.strict_yaml.parse_events": (lambda text: [*strict_yaml.parse_events(text)],),
    "ohsandbox.strict_yaml.parse_yaml": (
        strict_yaml.parse_yaml,
        lambda text: strict_yaml.parse_yaml(f"a: {text}"),
        lambda text: strict_yaml.parse_yaml(f"a: 1{text}"),
        lambda text: strict_yaml.parse_yaml(f"[1{text}"),
        lambda text: strict_yaml.parse_yaml(f"a: !!int {text}"),
        lambda text: strict_yaml.parse_yaml("".join(f"%TAG !{i}! a\n" for i in range(len(text) // 12)) + "--- a"),
        lambda text: strict_yaml.parse_yaml("".join(f"a{i}: &a{i} [*a{i - 1}]\n" for i in range(len(text) // 20))),
        lambda text: strict_yaml.parse_yaml(
            f"- &a {{{','.join(f'{i}: 1' for i in range(len(text) // 16))}}}\n" + "- {<<: *a}\n" * (len(text) // 16)
        ),
    ),
    "pathspec.GitIgnoreSpec.from_lines": (lambda text: GitIgnoreSpec.from_lines(text.splitlines()),),
    "pathspec.patterns.gitignore.spec.GitIgnoreSpecPattern.pattern_to_regex": (GitIgnoreSpecPattern.pattern_to_regex,),
    "pyjson5.decode": (
        lambda text: pyjson5.decode(text, maxdepth=32),
        lambda text: pyjson5.decode(f"[{text}", maxdepth=32),
        lambda text: pyjson5.decode(f"['{text}", maxdepth=32),
    ),
    "regex.compile": (regex.compile,),
    "tarfile.open": (_members_of_tar,),
    "textwrap.dedent": (textwrap.dedent,),
    "textwrap.shorten": (lambda text: textwrap.shorten(text, 80),),
    "tokenize.generate_tokens": (lambda text: [*tokenize.generate_tokens(io.StringIO(text).readline)],),
    "urllib.parse.unquote": (urllib.parse.unquote,),
    "urllib.parse.urljoin": (lambda text: urllib.parse.urljoin("http://a/b", text),),
    "urllib.parse.urlsplit": (lambda text: urllib.parse.urlsplit(f"http://{text}").port,),
    "zlib.decompressobj": (lambda text: zlib.decompressobj().decompress(_utf8(text)),),
}  # fmt: skip
"""Parsers by name, each with texts in the places where they cost most."""

BOUNDED = {
    "configparser.ConfigParser": {"tool.plugins": "entry points of packages that are installed here"},
    "difflib.SequenceMatcher": {
        "cli.rendering.lines": "a line at most, and few of them",
        "cli.sandbox.runtime": "names of sandboxes",
        "tools.file_editor.lines": "what is left of both ends, see MAX_CELLS",
    },
    "difflib.get_close_matches": {
        "agent.calls": "a tool's name against those of tools",
        "cli.session.slash_commands": "a word of the person",
        "evaluation.formats.problems": "the keys of one schema",
        "evaluation.formats.swe_bench": "the columns of one schema",
        "text": "100 characters against known names",
        "tools.file_editor.matching": "lines of a bounded number of windows",
    },
    "difflib.unified_diff": {
        "cli.commands.mcp_servers": "a tool's bounded definition",
        "tools.edit_file": "an edit's bounded texts",
        "tools.file_editor.lines": "an edit's bounded texts",
    },
    "fnmatch.filter": {
        "agent.agent": "the person's own patterns", "evaluation.runner": "the person's own patterns",
        "tool.registry": "the person's own patterns",
    },
    "fnmatch.fnmatchcase": {
        "conversation.approvals.rules.known_programs": "patterns of ours",
        "evaluation.runner": "the person's own patterns", "runtime.workspace.copy_selection": "patterns of ours",
    } | dict.fromkeys(
        ("conversation.approvals.rules.paths", "evaluation.sandbox_files", "mcp.config"), "behind text.quoted_brackets",
    ),
    "fnmatch.translate": {"runtime.docker.images.build_ignore": "behind text.quoted_brackets"},
    "json.loads": {
        "strict_json": "where a text nested too deep becomes a ValueError",
        "cli.completion": "in the same way; a key press waits for what it imports",
        "tools.driver_bootstrap": "runs in the sandbox alone, on lines of ours",
        "testing.provider": "requests of the tests' own client",
    },
    "shlex.shlex": {"runtime.workspace.git_programs": "at most 64 KiB: quadratic in one word, 0.1 s"},
    "shlex.split": {
        "cli.commands.config": "the person's own editor", "cli.rendering.tables": "the person's own pager",
        "cli.interactive.attachments": "a path of bounded length", "cli.session.slash_commands": "the person's line",
        "runtime.service_options": "at most 64 KiB: quadratic in one word, 0.1 s",
        "tools._ipython_kernel.plain": "runs in the sandbox, within its limits",
    },
    "tomllib.loads": {"strict_toml": "behind its own checks"},
    "unicodedata.normalize": {
        "evaluation.formats.harbor_file": "a name of bounded length: quadratic in combining marks",
        "secrets.encodings": "the person's own secrets", "tools.file_editor.matching": "one character",
    },
    "yaml.parse": {"strict_yaml": "behind its own checks"},
}  # fmt: skip
"""Parsers that take longer than in proportion, with the modules that call them, and what bounds the text there."""
HOSTILE = SEEDS | {
    "digits": "9", "sixties": ":1", "dots": "a.", "percents": "%41", "entities": "&amp;", "comments": "#a",
    "commas": "1,", "items": "- ", "anchors": "&a ", "merges": "<<: ", "keys": "? ", "openers": "[", "braces": "{",
    "parentheses": "(",
    "pairs": "a=", "nuls": "\0", "globs": "*a", "underscores": "1_", "exponents": "1e1", "directories": "../",
    "quoted": '"\\"".',
}  # fmt: skip


def calls_of_parsers() -> Iterator[tuple[str, str]]:
    """The parsers that the package calls by their full names, each with the calling module's name."""
    for module, path in modules().items():
        tree = ast.parse(path.read_text("utf-8"))
        names: dict[str, str] = {}
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    package = alias.name.partition(".")[0]
                    names[alias.asname or package] = alias.name if alias.asname else package
            elif isinstance(node, ast.ImportFrom) and node.module:
                names |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute | ast.Name):
                root, _, rest = ast.unparse(node).partition(".")
                full = names.get(root, "") + f".{rest}" * bool(rest)
                if full.rpartition(".")[0] in LIBRARIES or full in LINEAR:
                    yield full, module.removeprefix("ohsandbox.")


def _parses_nothing(name: str) -> bool:
    """Whether it is a writer, or a class of errors, nodes or tokens."""
    library, _, last = name.rpartition(".")
    is_class = last[:1].isupper() and name not in LINEAR and name not in BOUNDED
    return is_class or last in NO_PARSERS.get(library, "").split()


def test_every_parser_of_the_package_has_its_row_or_a_bound_wherever_it_is_called() -> None:
    calls = {(parser, module) for parser, module in calls_of_parsers() if not _parses_nothing(parser)}
    unknown = {call for call in calls if call[0] not in LINEAR}
    assert unknown == {(parser, module) for parser, callers in BOUNDED.items() for module in callers}
    assert {parser for parser, _ in calls} >= set(LINEAR)


REFUSALS = (
    ArithmeticError, LookupError, MemoryError, RecursionError, SyntaxError, TypeError, ValueError, TarError,
    tokenize.TokenError, zlib.error, regex.error, pyjson5.Json5Exception, yaml.YAMLError,
)  # fmt: skip


def _ignoring_what_it_refuses(parse: Callable[[str], Any]) -> Callable[[str], None]:
    def parsed(text: str) -> None:
        with contextlib.suppress(*REFUSALS):
            parse(text)

    return parsed


@pytest.mark.slow
@pytest.mark.parametrize("name", LINEAR)
def test_a_parser_takes_about_four_times_the_time_for_four_times_the_text(name: str) -> None:
    assert [_grows_too_fast(_ignoring_what_it_refuses(parse), HOSTILE) for parse in LINEAR[name]] == [{}] * len(
        LINEAR[name]
    )


STATE_FILES: dict[str, tuple[str, Callable[[Path], Any], Any]] = {
    "address of a page": (ADDRESS_NAME, hosted_at, None),
    "branch": ("branches/key/branch.json", lambda _: find_branches(), []),
    "container of a conversation": (CONTAINER_NOTE_NAME, noted_container, None),
    "metadata of a conversation": ("c/metadata.json", lambda root: FileConversationStore(root).load("c"), None),
    "edits of files": ("1.edit", lambda directory: EditHistory(directory).edits("/a"), []),
    "files that were seen": ("seen.json", lambda directory: EditHistory(directory).seen("/a"), None),
    "sandbox of a conversation": (SANDBOX_NAME, stored_options, None),
}


@pytest.mark.parametrize("name", STATE_FILES)
@pytest.mark.parametrize(
    "text", ["[" * 100_000, "[]", '{"a":' * 100_000], ids=["deep list", "no object", "deep object"]
)
def test_a_state_file_that_something_else_wrote_is_as_none(
    name: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OHSANDBOX_HOME", str(tmp_path))
    file, read, absent = STATE_FILES[name]
    (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / file).write_text(text)
    assert read(tmp_path) == absent


def test_archives_become_files_in_one_module_only_which_counts_what_it_makes() -> None:
    texts = {module: path.read_text("utf-8") for module, path in modules().items()}
    calls = [
        (module, node.attr)
        for module, text in texts.items()
        if "tarfile" in text or "zipfile" in text or "shutil" in text
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Attribute) and node.attr in {"extract", "extractall", "extractfile", "unpack_archive"}
    ]
    in_memory = ("ohsandbox.project.registry", "extractfile")  # a feature's files, counted there
    assert sorted(calls) == [in_memory, ("ohsandbox.runtime.files.unpack", "extractfile")]
