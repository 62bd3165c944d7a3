from __future__ import annotations

import json
import shutil
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ohsandbox import CLIRuntime
from ohsandbox.errors import ToolError
from ohsandbox.schema import text_of
from ohsandbox.state import ConversationState
from ohsandbox.tools.web_read import definition, page
from ohsandbox.tools.web_read.definition import make_web_read_tool
from ohsandbox.tools.web_read.impl import Streams, checked_url, joined, notes_of, parse_heads, split_heads
from ohsandbox.tools.web_read.page import Fetched, Hop, Page, bare_text, page_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ohsandbox.runtime.base import Runtime
    from ohsandbox.tool import ToolDefinition

BASE = "http://example.org/docs/page"

SERVER = r"""
import gzip, http.server, sys, time
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        path = self.path.partition("?")[0]
        if path.startswith("/hop"):
            self.send(302, b"moved", Location="/hop%d" % (int(path[4:]) - 1) if path != "/hop0" else "/docs/end")
            return time.sleep(0.2)  # the connection closes late: a client must not send its next request on it
        if path == "/away":
            return self.send(302, b"", Location="file:///etc/passwd")
        if path == "/docs/end":
            return self.send(200, b"<title>End</title><h1>The <i>end</i></h1><a href=next>on</a>")
        if path == "/zip":
            return self.send(200, gzip.compress(b"<p>zipped"), **{"Content-Encoding": "gzip"})
        if path == "/json":
            return self.send(200, b'{"a": [1]}', **{"Content-Type": "application/json"})
        if path == "/pdf":
            return self.send(200, b"%PDF-1.7 \0", **{"Content-Type": "application/pdf"})
        if path == "/query":
            return self.send(200, self.path.encode(), **{"Content-Type": "text/plain"})
        if path == "/long":
            return self.send(200, b"<p>" + b"word " * 20000)
        if path == "/endless":
            self.send_response(200)
            self.send_header("Content-Type", "text/plain")
            self.end_headers()
            while True:
                self.wfile.write(b"x" * 65536)
        if path == "/slow":
            self.send_response(200)
            self.end_headers()
            time.sleep(60)
        if path == "/broken":
            return self.send(200, b"part", **{"Content-Length": "1000", "Content-Type": "text/plain"})
        self.send(404, b"nothing here")
    def send(self, status, body, **headers):
        self.send_response(status)
        for name, value in {"Content-Type": "text/html", "Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *_):
        pass
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
open(sys.argv[1], "w").write(str(server.server_port))
server.serve_forever()
"""

CGI = "#!/bin/sh\nprintf 'Status: 302 Found\\r\\nLocation: /docs/end.html\\r\\n\\r\\n'\n"


def tool(runtime: Runtime) -> ToolDefinition[Any, Any]:
    return make_web_read_tool(conv_state=ConversationState(conversation_id="c", runtime=runtime))


def read(runtime: Runtime, url: str, **arguments: Any) -> str:
    made = tool(runtime)
    return text_of(made(made.action_from_arguments({"url": url, **arguments})))


def serve(runtime: Runtime, folder: str) -> str:
    """Start the server above; its address."""
    runtime.write_bytes(f"{folder}/server.py", SERVER.encode())
    command = f"cd {folder} && (python3 server.py port &) && until [ -s port ]; do sleep 0.1; done; cat port"
    return f"http://127.0.0.1:{runtime.execute(command, timeout_s=60, session='server').output.strip()}"


@pytest.fixture(scope="module", params=["curl", "wget", "python3"])
def cli(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runtime]:
    """This host with a single program to fetch pages with."""
    folder = tmp_path_factory.mktemp("bin")
    for name in ("sh", "bash", "cat", "grep", "sleep", "mkdir", "rm", "stty", "env", request.param):
        found = str(Path(sys.executable).resolve()) if name == "python3" else shutil.which(name)
        if found is None:
            pytest.skip(f"this host has no {name}")
        (folder / name).symlink_to(found)
    with CLIRuntime(tmp_path_factory.mktemp("cli"), env={"PATH": str(folder)}, bubblewrap=False, quiet=True) as runtime:
        yield runtime


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The server above, on this host."""
    folder = tmp_path_factory.mktemp("site")
    with CLIRuntime(folder, bubblewrap=False, quiet=True) as runtime:
        yield serve(runtime, str(folder))


def test_a_page_is_read_from_inside_a_container(roomy: Runtime, tmp_path: Path) -> None:
    folder = f"{roomy.workdir}/{tmp_path.name}"
    address = serve(roomy, folder)
    try:
        text = f"# The *end*\n\n[on]({address}/docs/next)"
        assert read(roomy, f"{address}/hop2") == (
            f"[Page {address}/docs/end; title 'End'; text/html; {len(text)} characters]\n"
            f"# The *end*\n\n[on]({address}/docs/next)"
        )
    finally:
        roomy.close_session("server")


@pytest.mark.docker
def test_busybox_reads_pages_too(started: Callable[[str], Runtime]) -> None:
    runtime = started("busybox")
    runtime.write_bytes("/tmp/site/docs/end.html", b"<title>End</title><a href=next>on</a>")
    runtime.write_bytes("/tmp/site/cgi-bin/hop", CGI.encode(), mode=0o755)
    runtime.execute("httpd -p 127.0.0.1:8123 -h /tmp/site", timeout_s=60, session="server")
    try:
        shown = read(runtime, "http://127.0.0.1:8123/cgi-bin/hop")
        assert "[Page http://127.0.0.1:8123/docs/end.html; title 'End'" in shown
        assert "[on](http://127.0.0.1:8123/docs/next)" in shown
        with pytest.raises(ToolError, match=r"answered 404 Not Found"):
            read(runtime, "http://127.0.0.1:8123/none")
    finally:
        runtime.close_session("server")


@pytest.mark.docker
@pytest.mark.parametrize("place", ["debian", "busybox"])
def test_without_a_network_the_option_that_gives_one_is_named(started: Callable[[str], Runtime], place: str) -> None:
    with pytest.raises(ToolError, match=r"no network: only servers inside.*--allow HOST"):
        read(started(place), "http://example.org/")


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("/hop3", "# The *end*"),
        ("/zip", "zipped"),
        ("/json", '{"a": [1]}'),
        ("/query?q=%20a&b=[1]{2}", "/query?q=%20a&b=[1]"),
        ("/broken", "the connection broke; this is the beginning of the page]\npart"),
        ("/endless", "5242880 characters; the page is longer than 5 MiB"),
    ],
)
def test_every_program_brings_the_page(cli: Runtime, site: str, path: str, said: str) -> None:
    assert said in read(cli, site + path)


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("/none", "answered 404 Not Found"),
        ("/pdf", r"a PDF, 10 bytes.*Download it"),
        ("/hop9", "could not be fetched|answered 302"),
        ("/away", "could not be fetched|answered 302"),
    ],
)
def test_every_program_says_why_there_is_no_page(cli: Runtime, site: str, path: str, said: str) -> None:
    with pytest.raises(ToolError, match=said):
        read(cli, site + path)


def test_nobody_at_the_address_is_told(cli: Runtime) -> None:
    with pytest.raises(ToolError, match=r"could not be fetched .*Check the address"):
        read(cli, "http://127.0.0.1:1/")


def test_without_any_program_the_remedy_is_told(tmp_path: Path) -> None:
    (tmp_path / "sh").symlink_to("/bin/sh")
    with (
        CLIRuntime(tmp_path, env={"PATH": str(tmp_path)}, bubblewrap=False, quiet=True) as runtime,
        pytest.raises(ToolError, match="Install curl, wget or python3"),
    ):
        read(runtime, "http://127.0.0.1:1/")


def test_a_long_page_is_read_on_without_fetching_it_again(cli: Runtime, site: str) -> None:
    made = tool(cli)
    first = text_of(made(made.action_from_arguments({"url": f"{site}/long"})))
    assert "99999 characters]" in first
    assert first.endswith("[... 69999 characters left out here; read on with offset 30000 ...]")
    assert made.executor is not None
    made.executor._runtime = None  # type: ignore[attr-defined]
    rest = text_of(made(made.action_from_arguments({"url": f"{site}/long", "offset": 99_990})))
    assert rest.splitlines()[1:] == ["word word"]
    with pytest.raises(ToolError, match="has 99999 characters; offset 99999 is behind its end"):
        made(made.action_from_arguments({"url": f"{site}/long", "offset": 99_999}))


def test_a_fetch_ends_when_the_run_is_stopped(cli: Runtime, site: str) -> None:
    made = tool(cli)
    threading.Timer(0.5, made.executor.interrupt).start()  # type: ignore[union-attr]
    began = time.monotonic()
    with pytest.raises(ToolError, match="was stopped"):
        made(made.action_from_arguments({"url": f"{site}/slow"}))
    assert time.monotonic() - began < 20


@pytest.mark.parametrize(
    ("given", "sent"),
    [
        ("http://Example.org", "http://example.org"),
        (" https://example.org/a%20b?q=ä#part ", "https://example.org/a%20b?q=%C3%A4"),
        ("http://bücher.example/ü", "http://xn--bcher-kva.example/%C3%BC"),
        ("http://[::1]:80/'$(id)'", "http://[::1]:80/'$(id)'"),
        ("http://me:p%40ss@example.org/`id`", "http://me:p%40ss@example.org/%60id%60"),
    ],
)
def test_an_address_is_made_fit_for_the_wire(given: str, sent: str) -> None:
    assert checked_url(given) == sent


@pytest.mark.parametrize(
    "url",
    ["example.org", "file:///etc/passwd", "ftp://x/", "-K/etc/passwd", "http://", "http://a b/", "http://a/\r\nHost: b",
     "http://[::1", "http://a:99999/", "javascript:alert(1)", "http://a\x00b/", "http://" + "ü" * 300 + "/"],
)  # fmt: skip
def test_what_is_no_address_of_the_web_is_refused(url: str) -> None:
    with pytest.raises(ToolError, match="address"):
        checked_url(url)


def test_heads_are_read_from_what_wget_says_and_hostile_ones_stay_harmless() -> None:
    said = "\n".join(
        [
            "fetched with: busybox",
            "wget: note: TLS certificate validation not implemented",
            "  HTTP/1.1 302 Found",
            "  Location: /" + "a" * 100_000,
            "  HTTP/1.1 200 OK",
            "  Content-Type: text/" + "x" * 100_000,
        ]
    )
    hops = parse_heads(said)
    assert [hop.status for hop in hops] == [302, 200]
    assert joined(BASE, hops[0].headers["location"]) == BASE
    assert joined(BASE, "//other.example/x y") == BASE
    assert joined(BASE, "../b?c") == "http://example.org/b?c"
    assert "certificate could not be checked" in notes_of(Streams(b"", said, "whole"), 0)[0]
    read = page_of(Fetched(BASE, hops[1], b"x", ()))
    assert len(read.kind) == 100


def test_a_body_that_looks_like_a_head_is_a_body() -> None:
    body = b"HTTP/1.1 200 OK\r\nContent-Type: x/forged\r\n\r\nbody"
    first = b"HTTP/1.1 103 Early Hints\r\n\r\nHTTP/2 200 \r\ncontent-type: text/plain\r\n\r\n"
    hops, rest = split_heads(first + body)
    assert [(hop.status, hop.headers) for hop in hops] == [(200, {"content-type": "text/plain"})]
    assert rest == body


def made_of(body: bytes, content_type: str = "text/html", **headers: str) -> Page:
    return page_of(Fetched(BASE, Hop(200, "OK", {"content-type": content_type, **headers}), body, ()))


@pytest.mark.parametrize(
    ("body", "content_type", "text"),
    [
        ("é".encode("latin-1"), "text/plain; charset=ISO-8859-1", "é"),
        ("€".encode("cp1252"), "text/plain; charset=latin1", "€"),
        ("日本".encode("shift_jis"), "text/plain;charset=Shift_JIS", "日本"),
        ("é".encode(), "text/plain; charset=nonsense", "é"),
        ("é".encode(), "text/plain; charset=idna", "é"),
        (b"xe9", "text/plain; charset=hex", "xe9"),
        ("é".encode("latin-1"), "text/plain", "é"),
        ("\ufeffé".encode("utf-16"), "text/plain", "é"),
        ("<meta charset=koi8-r>я".encode("koi8-r"), "text/html", "я"),
        (b"{}", "application/ld+json", "{}"),
        (b"plain", "", "plain"),
        (b"<!DOCTYPE html><p>x", "", "x"),
        (b"a\x80", "text/html; charset=utf-8", "a\ufffd"),
        (b"", "text/html", ""),
    ],
)
def test_the_encoding_is_the_one_that_is_told_or_found(body: bytes, content_type: str, text: str) -> None:
    assert made_of(body, content_type).text.lstrip("\ufeff") == text


@pytest.mark.parametrize(
    ("body", "content_type"),
    [(b"\x89PNG\0", "image/png"), (b"x\0y", "text/plain"), (b"%PDF-1.4", ""), (b"x", "video/mp4"), (b"PK\0\0", "")],
)
def test_what_is_no_text_is_refused(body: bytes, content_type: str) -> None:
    with pytest.raises(ToolError, match=r"and no text\. Download it"):
        made_of(body, content_type)


def test_html_becomes_markdown_with_absolute_links() -> None:
    body = b"""<html><head><title>T &amp; x</title><base href="/base/"><style>b{}</style></head><body><p>one<p>two
    <ul><li>a<li><a href="x?y=1">b</a></ul><img src="i.png" alt="I"><img src="data:image/png;base64,AAAA">
    <table><tr><th>h<th>i<tr><td>1<td>2</table><pre>def f():
    pass</pre><script>alert(1)</script>"""
    read = made_of(body)
    assert read.title == "T & x"
    assert "- [b](http://example.org/base/x?y=1)" in read.text
    assert "![I](http://example.org/base/i.png)" in read.text
    assert "| 1 | 2 |" in read.text
    assert "def f():\n    pass" in read.text
    assert not [word for word in ("alert", "b{}", "AAAA") if word in read.text]


HOSTILE = {
    "deep": "<div>" * 200_000 + "x",
    "lists": "<ul><li>" * 100_000 + "x",
    "tables": "<table><tr><td>" * 50_000 + "x",
    "cells": "x<table>" + "<tr><td>a<td>b" * 300_000,
    "wide": "<table><tr><td colspan=1000000000 rowspan=1000000000>x</table>",
    "attributes": "<a " + " ".join(f'a{i}="{i}"' for i in range(250_000)) + ">x</a>",
    "open": "x" + "<a " * 1_600_000,
    "brackets": "x" + "<" * 5_000_000,
    "comments": "x" + "<!--" * 1_000_000,
    "entities": "x&#" + "9" * 5000 + ";" + "&" * 4_000_000,
    "scripts": "x" + "<script>" * 600_000,
    "spaces": "x" + " " * 5_000_000,
    "base": '<base href="http://[">x<a href="http://[">y</a>',
    "start": '<ol start="99999999999999999999999"><li>x</ol>',
}


@pytest.mark.slow
@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_page_ends_in_bounded_time_with_its_text(name: str) -> None:
    assert "x" in made_of(HOSTILE[name].encode()[: definition.MAX_PAGE_BYTES]).text


def test_the_converter_has_nothing_of_the_person_s_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.exit('loaded')")
    (tmp_path / "html_to_markdown.py").write_text("import sys; sys.exit('loaded')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("OPENAI_API_KEY", "sk-canary")
    monkeypatch.setenv("PYTHONSTARTUP", str(tmp_path / "sitecustomize.py"))
    monkeypatch.chdir(tmp_path)
    html = b"<h1>Head</h1><p>a <b>word</b></p>"
    assert made_of(html).text == "# Head\n\na **word**"
    told = tmp_path / "told.py"
    told.write_text("import os, sys\nprint(dict(os.environ), sys.flags.isolated, os.getcwd())")
    monkeypatch.setattr(page, "_PROGRAM", told)
    assert made_of(html).text in {"{} 1 /", "{'LC_CTYPE': 'C.UTF-8'} 1 /"}  # PEP 538 sets the latter


def test_a_page_that_cannot_be_converted_comes_as_bare_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "CONVERT_TIMEOUT_S", 0.001)
    read = made_of(b"<h1>Head &lt;1&gt;</h1>\n\n\n\n<script>no</script><p>text</p>")
    assert read.text == "Head <1>\n\ntext"
    assert "could not be converted" in read.notes[0]


@pytest.mark.parametrize("text", ["<" * 5_000_000, " " * 5_000_000, "<script>" * 600_000, "</script " * 600_000])
def test_bare_text_takes_linear_time(text: str) -> None:
    began = time.process_time()
    bare_text(text)
    assert time.process_time() - began < 60


def test_a_compressed_page_cannot_grow_without_bound() -> None:
    import gzip  # noqa: PLC0415

    bomb = gzip.compress(b"x" * 100_000_000)
    assert len(made_of(bomb, "text/plain", **{"content-encoding": "gzip"}).text) == definition.MAX_PAGE_BYTES
    with pytest.raises(ToolError, match="damaged"):
        made_of(b"no", "text/plain", **{"content-encoding": "gzip"})
    with pytest.raises(ToolError, match="compressed as 'br'"):
        made_of(b"no", "text/plain", **{"content-encoding": "br"})


def test_the_tool_is_read_only_and_opens_no_network_by_itself(started: Callable[[str], Runtime]) -> None:
    made = tool(started("cli"))
    assert made.is_read_only
    assert "security_risk" not in json.dumps(made.to_openai_tool())


@pytest.fixture
def without_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "CONVERTER", "no_such_library")


@pytest.mark.usefixtures("without_library")
def test_without_the_library_a_page_is_readable_text_and_the_remedy_is_told() -> None:
    read = made_of(
        b"<title>T</title><script>no()</script><h2>Head &lt;1&gt;</h2><p>a\n <b>word</b> <a href=/to>link</a></p>"
        b"<ul><li>one<li><a href='#x'>two</a></ul><table><tr><td>1<td>2</table><pre>a\n  b</pre><style>no"
    )
    assert read.text == ("## Head <1>\n\na word [link](http://example.org/to)\n\n- one\n- two\n\n | 1 | 2\n\na\n  b")
    assert read.title == "T"
    assert "pip install 'ohsandbox[web]'" in read.notes[0]


@pytest.mark.slow
@pytest.mark.usefixtures("without_library")
@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_page_ends_in_bounded_time_without_the_library_too(name: str) -> None:
    assert "x" in made_of(HOSTILE[name].encode()[: definition.MAX_PAGE_BYTES]).text
