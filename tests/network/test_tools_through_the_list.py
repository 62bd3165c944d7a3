"""Package tools and HTTP clients, each used for real from inside a sandbox whose list holds `packages` alone.

The hosts are those of this machine's own pip, npm and apt; what a tool needs beyond the variables is what the table in
docs/network.md says.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

import pytest

from ohsandbox import DockerRuntime
from ohsandbox.network.package_hosts import shared_package_hosts
from tests.runtime.engines import IMAGE

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [
    pytest.mark.docker,
    pytest.mark.timeout(600),
    pytest.mark.slow(
        "downloads Java and Node into a sandbox; tests/runtime/docker/network/test_allowlist.py has the rules"
    ),
]
DEBS = "curl wget git python3-pip python3-venv nodejs default-jdk-headless"
NPM = "10.9.2"
TARBALL = 'JSON.parse(require("fs").readFileSync(0)).dist.tarball'
WHEELS = "requests httpx aiohttp uv"
URL_CONNECTION = """import java.net.*;
public class Url { public static void main(String[] a) throws Exception {
  System.out.println(((HttpURLConnection) new URI(a[0]).toURL().openConnection()).getResponseCode()); } }"""
HTTP_CLIENT = """import java.net.*; import java.net.http.*;
public class Client { public static void main(String[] a) throws Exception {
  var request = HttpRequest.newBuilder(URI.create(a[0])).build();
  var answer = HttpClient.newHttpClient().send(request, HttpResponse.BodyHandlers.ofString());
  System.out.println(answer.statusCode()); } }"""
AIOHTTP = """import aiohttp, asyncio, sys
async def main():
    async with aiohttp.ClientSession(trust_env=True) as session:
        async with session.get(sys.argv[1]) as answer:
            print(answer.status)
asyncio.run(main())"""
FETCH = "fetch(process.argv[1]).then((a) => console.log(a.status)).catch((e) => console.log(e.cause))"
NODE_HTTPS = 'require("https").get(process.argv[1], (a) => { console.log(a.statusCode); a.resume(); })'
CODE = r"200\s*$"
TOOLS = {
    "curl": ("curl -sS -o /dev/null -w '%{http_code}' $URL", CODE),
    "wget": ("wget -S -O /dev/null $URL 2>&1 | grep HTTP/ | tail -1; true", r"HTTP/1.1 200"),
    "pip": ("v/bin/pip install --no-cache-dir -q six && v/bin/python -c 'import six; print(six.__name__)'", "six"),
    "uv": ("v/bin/uv pip install --no-cache -p v/bin/python iniconfig 2>&1", r"\+ iniconfig"),
    "npm": ("node package/bin/npm-cli.js install --no-audit --no-fund left-pad 2>&1", "added 1 package"),
    "apt": ("apt-get install -y hello >/dev/null && hello", "Hello, world!"),
    "git": ("git ls-remote $BASE/no/such 2>&1; true", "not found"),
    "urllib": ("python3 -c 'import sys, urllib.request as u; print(u.urlopen(sys.argv[1]).status)' $URL", CODE),
    "requests": ("v/bin/python -c 'import sys, requests; print(requests.get(sys.argv[1]).status_code)' $URL", CODE),
    "httpx": ("v/bin/python -c 'import sys, httpx; print(httpx.get(sys.argv[1]).status_code)' $URL", CODE),
    "aiohttp": ("v/bin/python aio.py $URL", CODE),
    "node-fetch": (f"node -e '{FETCH}' $URL", CODE),
    "node-https": (f"node -e '{NODE_HTTPS}' $URL", CODE),
    "java-url": ("java Url.java $URL 2>&1", CODE),
    "java-http-client": ("java Client.java $URL 2>&1", CODE),
}


@pytest.fixture(scope="module")
def sandbox() -> Iterator[DockerRuntime]:
    """One with the tools, installed through its list."""
    hosts = {one.tool: one.host for one in reversed(shared_package_hosts().all())}
    if missing := {"pip", "npm", "apt"} - hosts.keys():
        lacks = f"this machine's {', '.join(sorted(missing))} name no registry"
        pytest.fail(lacks) if os.environ.get("CI") == "true" else pytest.skip(lacks)
    bundle = next(filter(None, map(os.environ.get, ("PIP_CERT", "REQUESTS_CA_BUNDLE", "SSL_CERT_FILE"))), None)
    with DockerRuntime(IMAGE, network="allowlist", allow=("packages",), ca_bundle=bundle) as runtime:
        base = f"https://{hosts['npm']}"
        runtime.set_env({"BASE": base, "URL": f"{base}/left-pad"})
        for name, text in (("Url.java", URL_CONNECTION), ("Client.java", HTTP_CLIENT), ("aio.py", AIOHTTP)):
            runtime.write_bytes(name, text.encode())
        for command in (
            "apt-get update",
            f"apt-get install -y --no-install-recommends {DEBS}",
            # Debian's npm has 300 packages of its own
            f"curl -sS $BASE/npm/{NPM} | node -p '{TARBALL}' | xargs curl -sS | tar xz",
            f"python3 -m venv v && v/bin/pip install --no-cache-dir {WHEELS}",
        ):
            installed = runtime.execute(command, timeout_s=600)
            assert installed.exit_code == 0, f"{command}: {installed.output[-2000:]}"
        yield runtime


@pytest.mark.parametrize("tool", TOOLS)
def test_it_works_through_the_list(sandbox: DockerRuntime, tool: str) -> None:
    command, expected = TOOLS[tool]
    before = len(sandbox.network_decisions())
    ran = sandbox.execute(command, timeout_s=120)
    assert re.search(expected, ran.output.rstrip()), ran.output[-2000:]
    decided = sandbox.network_decisions()[before:]
    assert decided
    assert all(one.allowed for one in decided)


def test_what_is_not_on_it_is_refused_to_each(sandbox: DockerRuntime) -> None:
    for tool in ("curl", "git", "node-fetch", "java-url", "requests"):
        command = (
            TOOLS[tool][0].replace("$URL", "https://other.example.org/x").replace("$BASE", "https://other.example.org")
        )
        ran = sandbox.execute(command, timeout_s=120)
        assert not re.search(CODE, ran.output), tool
        assert "other.example.org" in {one.host for one in sandbox.network_decisions() if not one.allowed}


def test_without_the_list_nothing_leaves(sandbox: DockerRuntime) -> None:
    direct = "env -u https_proxy -u HTTPS_PROXY -u all_proxy -u ALL_PROXY curl -sS --max-time 5 $URL"
    assert sandbox.execute(direct, timeout_s=30).exit_code in {6, 7}
