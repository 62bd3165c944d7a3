"""The hosts that this user's package tools download from, which the rule `packages` allows.

They are found once, in the background: in the tools' configuration files, and by asking the tools themselves.

Only files of the user and of the machine count, and tools run in the root directory, so files of a repository
(`.npmrc`, `.cargo/config.toml`, `uv.toml`) open nothing. Of a URL only host and port are kept: it may hold a password.
"""

from __future__ import annotations

import concurrent.futures
import importlib.util
import os
import re
import subprocess
import sys
import threading
import urllib.parse
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ohsandbox import host_programs
from ohsandbox.network.addresses import HostNameError, is_local_name, normalized_host
from ohsandbox.private_files import read_regular
from ohsandbox.strict_json import load_json
from ohsandbox.strict_toml import InvalidToml, parse_toml
from ohsandbox.text import quoted_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

SOON_S = 2.0
"""Seconds until the search begins, which takes 0.5 s of CPU time: by then a run has sent its first request."""
WAIT_S = 10.0
"""Maximum number of seconds that a decision waits for the hosts; finding them takes about a second."""
_TOOL_TIMEOUT_S = 8.0
"""Time limit for one tool in seconds; the slowest, pip, takes half a second."""
_MAX_FILE_BYTES = 1024 * 1024
_URL = re.compile(r"https?://[^\s'\",|<>]+", re.IGNORECASE)
_PIP_SETTING = re.compile(r"\s+(?:[\w:]{0,40}\.|PIP_)([\w-]{1,60})(?:: |=)")
_PIP_FILE = re.compile(r"  (\S.{0,4000}), exists: (?:True|False)")
_PIP_WANTED = frozenset({"index-url", "extra-index-url", "find-links"})
_PIP_SCRIPT = """
import runpy, sys
sys.path.extend(sys.argv[1:])
try:
    from pip._internal.models.index import PyPI
    print("default", PyPI.simple_url, "https://" + PyPI.file_storage_domain)
except (ImportError, AttributeError):
    print("default")
sys.argv = ["pip", "config", "debug"]
runpy.run_module("pip", run_name="__main__")
"""
"""Prints pip's default index and the host of its files, for which pip has no option, and then pip's settings."""
_TOML_KEYS = frozenset({"index", "index-url", "extra-index-url", "default-index", "find-links", "url", "registry"})
_ENABLED_NO = re.compile(r"^enabled:\s*(?:no|false|0)\s*$", re.IGNORECASE | re.MULTILINE)


@dataclass(frozen=True)
class PackageHost:
    """A host that a package tool of this machine downloads from.

    Attributes:
        host: the normalized name.
        ports: the ports.
        tool: `pip`, `uv`, `npm`, `apt`, `cargo` or `go`.
        source: the file, variable or tool that names the host.
    """

    host: str
    ports: frozenset[int]
    tool: str
    source: str


def found_on_this_machine() -> tuple[PackageHost, ...]:
    """Return the hosts of all package tools of this machine, each once per tool; this takes about a second."""
    environ = dict(os.environ)
    readers = (pip_hosts, uv_hosts, npm_hosts, apt_hosts, cargo_hosts, go_hosts)
    with concurrent.futures.ThreadPoolExecutor(len(readers)) as pool:
        hosts_found = [host for hosts in pool.map(lambda reader: list(reader(environ)), readers) for host in hosts]
    return tuple({(host.tool, host.host, host.ports): host for host in reversed(hosts_found)}.values())[::-1]


class PackageHosts:
    """The hosts of package tools, found once, in a thread of their own. Thread-safe.

    Args:
        find: returns the hosts; None asks the tools of this machine.
    """

    def __init__(self, find: Callable[[], Iterable[PackageHost]] | None = None) -> None:
        self._find = find or found_on_this_machine
        self._guard = threading.Lock()
        self._thread: threading.Thread | None = None
        self._timer: threading.Timer | None = None
        self._done = threading.Event()
        self._found: tuple[PackageHost, ...] = ()
        self._by_place: dict[tuple[str, int], PackageHost] = {}

    def start(self) -> None:
        """Start finding the hosts, unless that has been done."""
        with self._guard:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="ohsandbox-package-hosts", daemon=True)
                self._thread.start()

    def start_soon(self) -> None:
        """Start finding the hosts after SOON_S seconds, unless `start` or a question does it earlier."""
        with self._guard:
            if self._thread is None and self._timer is None:
                self._timer = threading.Timer(SOON_S, self.start)
                self._timer.daemon = True
                self._timer.start()

    def _run(self) -> None:
        try:
            self._found = tuple(self._find())
            self._by_place = {(host.host, port): host for host in reversed(self._found) for port in host.ports}
        finally:
            self._done.set()

    @property
    def ready(self) -> bool:
        """Whether the search has ended."""
        return self._done.is_set()

    def all(self, *, timeout_s: float = WAIT_S) -> tuple[PackageHost, ...]:
        """Return all hosts; an empty tuple if they are not known after timeout_s seconds."""
        self.start()
        self._done.wait(timeout_s)
        return self._found

    def find(self, host: str, port: int) -> PackageHost | None:
        """Return the first entry for a normalized host and port, or None; it waits up to WAIT_S seconds."""
        self.all()
        return self._by_place.get((host, port))


_shared_guard = threading.Lock()
_shared: PackageHosts | None = None


def shared_package_hosts() -> PackageHosts:
    """Return the instance that all sandboxes of this process share."""
    global _shared  # noqa: PLW0603 - found once for all sandboxes of the process
    with _shared_guard:
        if _shared is None:
            _shared = PackageHosts()
        return _shared


# --- the tools --------------------------------------------------------------------------------


def pip_hosts(environ: Mapping[str, str]) -> Iterator[PackageHost]:
    """Yield the hosts in pip's settings, and its default index if the settings name none.

    The pip of this interpreter, or the one that ensurepip bundles, prints the settings of the user's and the machine's
    files and variables. No pip on the PATH is run: a sandbox may have written one into a virtual environment.
    """
    spec = importlib.util.find_spec("ensurepip")  # on Debian it is a separate package
    bundled = sorted(Path(spec.origin).parent.glob("_bundled/pip-*.whl")) if spec and spec.origin else []
    output = _output_of([sys.executable, "-I", "-c", _PIP_SCRIPT, *map(str, bundled)], environ)
    default, _, settings = output.partition("\n")
    has_index, source, key = False, "environment", ""
    for line in settings.splitlines():
        if file := _PIP_FILE.fullmatch(line):
            source, key = file[1], ""
        elif setting := _PIP_SETTING.match(line):
            key = setting[1].lower().replace("_", "-")
            has_index = has_index or key == "index-url" or (key == "no-index" and _is_true(line[setting.end() :]))
        elif not line.startswith(" "):
            key = ""
        if key in _PIP_WANTED:
            yield from _hosts("pip", source, line)
    if not has_index:
        yield from _hosts("pip", "the default of pip", default)


def uv_hosts(environ: Mapping[str, str]) -> Iterator[PackageHost]:
    """Yield the hosts in uv's variables and the uv.toml of user and machine; if they name no index, its default."""
    has_index = any(name in environ for name in ("UV_DEFAULT_INDEX", "UV_INDEX_URL"))
    for name in ("UV_DEFAULT_INDEX", "UV_INDEX_URL", "UV_INDEX", "UV_EXTRA_INDEX_URL", "UV_FIND_LINKS"):
        yield from _hosts("uv", name, environ.get(name, ""))
    files = [_config_home(environ) / "uv" / "uv.toml"]
    files += [Path(each) / "uv" / "uv.toml" for each in environ.get("XDG_CONFIG_DIRS", "/etc/xdg").split(":")]
    files += [Path("/etc/uv/uv.toml")]
    config_file = environ.get("UV_CONFIG_FILE")
    for file in [Path(config_file)] if config_file else files:
        settings = _toml(file)
        has_index = (
            has_index
            or "index-url" in settings
            or any(isinstance(index, dict) and index.get("default") for index in settings.get("index") or [])
        )
        yield from _hosts("uv", str(file), _urls_in(settings))
    if not has_index and (output := _output_of(["uv", "pip", "install", "--help"], environ)):
        lines = [
            line for line in output.splitlines() if "by default: <" in line or line.lstrip().startswith("default: <")
        ]
        yield from _hosts("uv", "the default of uv", " ".join(lines))


def npm_hosts(environ: Mapping[str, str]) -> Iterator[PackageHost]:
    """Yield the registries in the user's `.npmrc`, and those that `npm config` prints, also the ones of scopes."""
    user_file = Path(environ.get("NPM_CONFIG_USERCONFIG") or _home(environ) / ".npmrc")
    of_file = [line for line in _text(user_file).splitlines() if "registry" in line.partition("=")[0]]
    yield from _hosts("npm", str(user_file), "\n".join(line.partition("=")[2] for line in of_file))
    try:
        settings = load_json(_output_of(["npm", "config", "list", "--json"], environ) or "{}")
    except ValueError:
        return
    if isinstance(settings, dict):
        registries = [str(value) for key, value in settings.items() if key == "registry" or key.endswith(":registry")]
        yield from _hosts("npm", "npm config", " ".join(registries))


def apt_hosts(_: Mapping[str, str], etc: Path = Path("/etc/apt")) -> Iterator[PackageHost]:
    """Yield the hosts of apt's sources in both formats, `.list` and `.sources`."""
    files = [etc / "sources.list", *sorted((etc / "sources.list.d").glob("*.list"))]
    for file in files:
        lines = [line for line in _text(file).splitlines() if line.lstrip().startswith(("deb ", "deb-src "))]
        yield from _hosts("apt", str(file), "\n".join(lines))
    for file in sorted((etc / "sources.list.d").glob("*.sources")):
        lines = [line for line in _text(file).splitlines() if not line.startswith("#")]
        for stanza in re.split(r"\n[ \t]*\n", "\n".join(lines)):
            if not _ENABLED_NO.search(stanza):
                yield from _hosts("apt", str(file), stanza)


def cargo_hosts(environ: Mapping[str, str]) -> Iterator[PackageHost]:
    """Yield the registries in the user's config.toml and variables; cargo does not print its built-in registry."""
    for name in sorted(environ):
        if name.startswith("CARGO_REGISTRIES_") and name.endswith("_INDEX"):
            yield from _hosts("cargo", name, environ[name])
    home = Path(environ.get("CARGO_HOME") or _home(environ) / ".cargo")
    for file in (home / "config.toml", home / "config"):
        tables = {key: value for key, value in _toml(file).items() if key in {"registry", "registries", "source"}}
        yield from _hosts("cargo", str(file), _urls_in(tables))


def go_hosts(environ: Mapping[str, str]) -> Iterator[PackageHost]:
    """Yield the hosts of GOPROXY and GOSUMDB, as `go env` or else the user's file and variables say."""
    values = _output_of(["go", "env", "GOPROXY", "GOSUMDB"], environ).splitlines()
    if len(values) == len(("GOPROXY", "GOSUMDB")):
        yield from _hosts("go", "go env", f"{values[0]}\n{_sum_url(values[1])}")
        return
    file = _config_home(environ) / "go" / "env"
    for source, pairs in ((str(file), _assignments(_text(file))), ("environment", environ)):
        yield from _hosts("go", source, f"{pairs.get('GOPROXY', '')}\n{_sum_url(pairs.get('GOSUMDB', ''))}")


def _assignments(text: str) -> dict[str, str]:
    return {name: value for name, _, value in (line.partition("=") for line in text.splitlines())}


def _sum_url(value: str) -> str:
    """Return the URL of a checksum database, of which the value holds the name, perhaps a key, and perhaps the URL."""
    if value in {"", "off"} or "://" in value:
        return value
    return f"https://{value.partition('+')[0].split()[0]}" if value.split() else ""


# --- reading their output and files -----------------------------------------------------------


def _hosts(tool: str, source: str, text: str) -> Iterator[PackageHost]:
    """Yield the hosts of all http and https URLs in a text, except IP addresses and this machine."""
    for url in _URL.findall(text):
        try:
            parts = urllib.parse.urlsplit(url)
            host, port = normalized_host(parts.hostname or ""), parts.port
        except (HostNameError, ValueError):
            continue
        if not is_local_name(host):
            ports = frozenset({80, 443}) if port is None else frozenset({port})
            yield PackageHost(host, ports, tool, quoted_line(source, limit_chars=200))


def _urls_in(value: Any, key: str = "") -> str:
    """Return the texts of a TOML tree whose key names an index, one per line."""
    if isinstance(value, dict):
        return "\n".join(_urls_in(item, name) for name, item in value.items())
    if isinstance(value, list):
        return "\n".join(_urls_in(item, key) for item in value)
    return value if isinstance(value, str) and key in _TOML_KEYS else ""


def _output_of(command: list[str], environ: Mapping[str, str]) -> str:
    """Return the output of a tool, run in the root directory; "" if it is missing, fails or exceeds its time limit."""
    path = environ.get("PATH", "")
    if (program := host_programs.find_program(command[0], path=path)) is None:
        return ""
    environment = {
        name: value for name, value in environ.items() if value[:1] != "/" or not _is_of_workspace(Path(value))
    }
    try:
        result = host_programs.run(
            [program, *command[1:]],
            cwd="/",
            env={**environment, "PATH": path, "COLUMNS": "200", "NO_COLOR": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=_TOOL_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    output: bytes = result.stdout[:_MAX_FILE_BYTES]
    return output.decode("utf-8", "replace") if result.returncode == 0 else ""


def _is_of_workspace(file: Path) -> bool:
    """Whether a file is in a workspace, where a sandbox may write."""
    return host_programs.is_in_workspace(os.path.realpath(file))


def _text(file: Path) -> str:
    if _is_of_workspace(file):
        return ""
    try:
        return read_regular(file, limit_bytes=_MAX_FILE_BYTES, follow=True).decode("utf-8", "replace")
    except OSError:
        return ""


def _toml(file: Path) -> dict[str, Any]:
    try:
        return parse_toml(_text(file))
    except InvalidToml:
        return {}


def _is_true(text: str) -> bool:
    return text.strip(" '\"").lower() in {"1", "true", "yes", "on"}


def _home(environ: Mapping[str, str]) -> Path:
    return Path(environ.get("HOME") or Path("~").expanduser())


def _config_home(environ: Mapping[str, str]) -> Path:
    return Path(environ.get("XDG_CONFIG_HOME") or _home(environ) / ".config")
