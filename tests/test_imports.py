"""The architecture, held: imports point down, and the slow libraries wait until they are needed."""

import ast
import functools
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path
from typing import NamedTuple

import pytest

import ohsandbox

ROOT = Path(ohsandbox.__file__).parent
LAYERS = (
    ("background_loop", "errors", "lazy_names", "review_text", "strict_json", "text"),
    ("strict_toml", "strict_yaml"),
    ("host_programs", "validation_errors"),
    ("arguments", "html_page", "limit_ranges", "price"),
    ("content",),
    ("schema", "events", "secrets", "paths", "private_files"),
    ("network",),
    ("runtime", "llm", "persistence", "settings_file", "key_store"),
    ("state",),
    ("tool",),
    ("tools", "mcp", "tool_flags"),
    ("agent", "mcp_server", "timetravel"),
    ("conversation", "settings"),
    ("testing", "compat", "evaluation", "project"),
    ("cli", "__main__", "integrations"),
)
"""The layers, from the bottom."""
LAYER_OF = {name: number for number, names in enumerate(LAYERS) for name in names}
BESIDE = {
    ("tools", "tool_flags"),
    ("private_files", "paths"),
    ("conversation", "settings"),
    ("__main__", "cli"),
}
"""Of one layer, and still in one direction only."""
LAYERS_WITHIN = {
    "cli": (
        ("completion",),
        ("rendering",),
        ("entrypoint",),
        ("prompts",),
        ("options",),
        ("settings",),
        ("sandbox",),
        ("viewer",),
        ("session",),
        ("commands",),
        ("interactive",),
        ("app_groups",),
        ("app",),
    ),
    "runtime/docker": (
        ("engine", "labels"),
        ("channel", "images", "mounts", "ownership"),
        ("config",),
        ("network", "sandbox"),
        ("container",),
        ("services",),
        ("checkpoints", "monitoring"),
        ("inventory",),
        ("provision",),
        ("attach", "container_runtime", "resume"),
        ("runtime",),
    ),
    "conversation": (
        ("approvals", "storage"),
        ("cost", "environment"),
        ("subagents",),
        ("run",),
        ("config", "log"),
        ("live_output", "methods"),
        ("conversation",),
    ),
}
"""The layers of the largest packages, from the bottom: their folders and modules."""
CREATED_ON_DEMAND = (
    ("schema.models", "schema.foreign"),  # Schema.from_mcp_schema: the model of a schema that is not ours
    *((f"tools.{tool}.definition", f"tools.{tool}.impl") for tool in ("browser", "file_editor", "web_read")),
)
"""Importer and imported: the only imports that would close a circle."""
BUILT_IN_TOOLS = {("runtime", "tools"), ("tool_flags", "tools")}
"""Up, by `import_module` at first use: importing the built-in tools registers them, which a lookup by name needs. No
other import points up."""
BY_NAME = {
    "lazy_names.py": "the public names of a package, from modules below it",
    "runtime/registered_tools.py": "see BUILT_IN_TOOLS",
    "tool_flags.py": "see BUILT_IN_TOOLS",
    "tools/__init__.py": "its own modules",
    "cli/commands/eval.py": "ahead of its use, in a thread",
    "mcp/servers.py": "ahead of its use, in a thread",
    "runtime/docker/network/container_network.py": "ahead of its use, in a thread",
    "tools/_ipython_kernel/ipython.py": "runs in the sandbox, whose IPython it imports",
}
"""The files that import modules by name, with the reasons. A text that names a module of ours counts as an import of it
in every file."""
NO_MODULES = {
    ("runtime/docker/labels.py", "ohsandbox.conversation"),
    ("tool/plugins.py", "ohsandbox.tools"),
}
"""Texts that are spelled like modules and are none: a label in the engine, a group of entry points."""
FORBIDDEN = {
    ("llm", "events"),
    ("llm", "schema"),
    ("runtime", "events"),
    ("tool", "llm"),
    ("tool", "events"),
    ("tools", "llm"),
    ("tools", "events"),
    ("tools", "conversation"),
    ("mcp_server", "llm"),
    ("mcp_server", "events"),
    ("timetravel", "llm"),
}
"""Down, and forbidden all the same: llm takes dicts, runtime knows no event, a tool no model, event or conversation;
mcp_server knows no model and no event, for its clients have their own; going back asks no model."""
SLOW = ("litellm", "fastmcp", "docker")
STARTS_WITH = {
    "annotated_doc", "annotated_types", "anyio", "ohsandbox", "pydantic", "pydantic_core", "rich",
    "shellingham", "sniffio", "tenacity", "typer", "typing_extensions", "typing_inspection",
}  # fmt: skip
"""What `ohsandbox run` imports before it asks the engine for anything; all of it takes 0.25 s."""
NETWORK_STARTS_WITH = {
    "ohsandbox.network.listeners",
    "ohsandbox.network.policy",
    "ohsandbox.network.addresses",
    "ohsandbox.network.audit",
}
"""Rules are checked before anything starts; proxy, tunnel and certificates come with the sandbox."""


class Import(NamedTuple):
    """One import statement of ours, anywhere in a file."""

    where: str
    importer: str
    imported: str


@functools.cache
def _parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def _imports() -> Iterator[Import]:
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        if parts == ("__init__",):
            continue  # the public names come from every layer
        for node in ast.walk(_parsed(path)):
            for module in _modules(node) + _named_modules(node, path):
                names = module.split(".")
                if names[0] == "ohsandbox":
                    where = f"{path.relative_to(ROOT.parent)}:{getattr(node, 'lineno', 0)}"
                    yield Import(where, parts[0], names[1] if len(names) > 1 else "")


def _modules(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if not isinstance(node, ast.ImportFrom):
        return []
    assert node.level == 0, "relative imports hide where they point"
    if node.module == "ohsandbox":
        return [f"ohsandbox.{alias.name}" for alias in node.names if alias.name in LAYER_OF]
    return [node.module or ""]


def _named_modules(node: ast.AST, path: Path) -> list[str]:
    """The module of ours that a text names: `import_module` may get it, in this file or from it in another."""
    text = node.value if isinstance(node, ast.Constant) else None
    if not isinstance(text, str) or not re.fullmatch(r"ohsandbox(\.\w+)+\.?", text):
        return []
    module = ROOT.parent.joinpath(*text.removesuffix(".").split("."))
    is_module = module.with_suffix(".py").exists() or (module / "__init__.py").exists()
    is_other = (path.relative_to(ROOT).as_posix(), text) in NO_MODULES
    return [text.removesuffix(".")] if is_module and not is_other else []


def _points_down(found: Import) -> bool:
    pair = (found.importer, found.imported)
    if found.importer == found.imported or pair in BESIDE:
        return True
    return pair not in FORBIDDEN and LAYER_OF[found.imported] < LAYER_OF[found.importer]


def test_every_module_has_a_layer() -> None:
    names = {path.stem for path in ROOT.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert names - {"__init__", "__pycache__"} == set(LAYER_OF)


def test_the_map_names_every_package_and_module_of_the_top() -> None:
    page = (ROOT.parent / "docs" / "architecture.md").read_text(encoding="utf-8")
    rows = [line.split("|")[1] for line in page.splitlines() if line.startswith("| `")]
    named = {name for row in rows for name in re.findall(r"`(\w+)", row)}
    assert set(LAYER_OF) - {"__main__"} - named == set()


def test_imports_point_down() -> None:
    upwards = [found for found in _imports() if not _points_down(found)]
    assert {(found.importer, found.imported) for found in upwards} == BUILT_IN_TOOLS, upwards


def test_the_test_above_sees_imports_inside_functions() -> None:
    assert any(found.importer == "settings" and found.imported == "llm" for found in _imports())


@pytest.mark.parametrize(
    "program",
    [
        "import importlib\n\ndef later():\n    importlib.import_module('ohsandbox.cli.app')",
        "from importlib import import_module as load\nload('ohsandbox.cli.app')",
        "_APP = 'ohsandbox.cli.app'\nThread(target=import_module, args=(_APP,))",
        "_APP = 'ohsandbox.cli.app'  # for another module, which imports it",
        "__import__('ohsandbox.cli.app')",
        "import_module(f'ohsandbox.cli.{name}')",
        "import ohsandbox.cli.app",
        "from ohsandbox.cli import app",
        "from ohsandbox import cli",
    ],
)
def test_an_import_in_any_form_is_seen(program: str) -> None:
    nodes = [*ast.walk(ast.parse(program))]
    found = {module for node in nodes for module in _modules(node) + _named_modules(node, ROOT / "text.py")}
    assert {module.split(".")[1] for module in found if module.startswith("ohsandbox.")} == {"cli"}


def test_modules_are_imported_by_name_where_a_reason_is_known_and_never_above_their_package() -> None:
    files, upwards = set[str](), list[str]()
    for path in ROOT.rglob("*.py"):
        nodes = [*ast.walk(_parsed(path))]
        used = {getattr(node, field, None) for node in nodes for field in ("id", "attr", "name")}
        if used & {"import_module", "__import__", "run_module"}:
            files.add(path.relative_to(ROOT).as_posix())
        if used & {"import_module", "__import__", "lazy_names"}:
            texts = [node.value for node in nodes if isinstance(node, ast.Constant)]
            upwards += [f"{path}: {one}" for one in texts if isinstance(one, str) and re.match(r"\.\.+\w", one)]
    assert files == set(BY_NAME)
    assert upwards == []


def _imports_within(package: str) -> Iterator[Import]:
    """Yield the imports between the folders and modules of a package, those inside functions too."""
    root = ROOT / package
    prefix = ".".join(("ohsandbox", *root.relative_to(ROOT).parts, ""))
    for path in sorted(root.rglob("*.py")):
        importer = path.relative_to(root).with_suffix("").parts[0]
        if importer == "__init__":
            continue  # the package's public names come from every layer
        tree = _parsed(path)
        typing = {id(one) for node in ast.walk(tree) if _is_for_types(node) for one in ast.walk(node)}
        for node in ast.walk(tree):
            if id(node) in typing:
                continue
            for module in _full_names(node) + _named_modules(node, path):
                imported = module.removeprefix(prefix).split(".")[0]
                if module.startswith(prefix) and imported != importer:
                    where = f"{path.relative_to(ROOT.parent)}:{getattr(node, 'lineno', 0)}"
                    yield Import(where, importer, imported)


def _full_names(node: ast.AST) -> list[str]:
    """What a statement imports: modules, or names in them."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    return [f"{node.module}.{alias.name}" for alias in node.names] if isinstance(node, ast.ImportFrom) else []


@pytest.mark.parametrize("package", LAYERS_WITHIN)
def test_imports_point_down_within_a_package(package: str) -> None:
    layer_of = {name: number for number, names in enumerate(LAYERS_WITHIN[package]) for name in names}
    there = {
        path.stem for path in (ROOT / package).iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()
    }
    assert there - {"__init__"} == set(layer_of)
    found = [*_imports_within(package)]
    assert [one for one in found if layer_of.get(one.imported, len(layer_of)) >= layer_of[one.importer]] == []


def test_no_folder_imports_itself_through_others() -> None:
    """In no package. Modules of one folder may: a tool's `definition` imports its `impl` when it is created."""
    found = []
    for package in {path.parent.parent for path in ROOT.rglob("*/*/__init__.py")} - {ROOT}:
        graph: dict[str, set[str]] = {}
        for one in _imports_within(package.relative_to(ROOT).as_posix()):
            graph.setdefault(one.importer, set()).add(one.imported)
        folders = [path.name for path in package.iterdir() if (path / "__init__.py").exists()]
        found += [f"{package.name}/{folder}" for folder in folders if folder in _reached(graph, folder)]
    assert found == []


def _reached(graph: dict[str, set[str]], start: str) -> set[str]:
    """Return what the imports of start lead to; start itself only if a circle comes back to it."""
    reached: set[str] = set()
    open_ends = [start]
    while open_ends:
        more = graph.get(open_ends.pop(), set()) - reached
        reached |= more
        open_ends += more
    return reached


def test_modules_import_each_other_in_no_circle() -> None:
    """Imports inside functions count too; but those by which a class finds what it creates only when it is asked to."""
    graph: dict[str, set[str]] = {}
    for path in ROOT.rglob("*.py"):
        if path.name == "__init__.py":
            continue  # the package's public names come from every layer
        tree = _parsed(path)
        typing = {id(one) for node in ast.walk(tree) if _is_for_types(node) for one in ast.walk(node)}
        name = ".".join(path.relative_to(ROOT.parent).with_suffix("").parts)
        found = [one for one in ast.walk(tree) if id(one) not in typing]
        graph[name] = {module for one in found for module in _modules(one) + _full_names(one)}
        graph[name] |= {module for one in found for module in _named_modules(one, path)}
    assert "ohsandbox.cli.settings.model_setup" in graph["ohsandbox.cli.settings.run_settings"], (
        "imports inside functions count"
    )
    for creator, created in CREATED_ON_DEMAND:
        graph[f"ohsandbox.{creator}"].remove(f"ohsandbox.{created}")
    TopologicalSorter(graph).prepare()  # raises CycleError, which names the circle


def _is_for_types(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"


def test_an_import_inside_a_function_says_why() -> None:
    """In words of its own. `app` and `app_groups` import what a command does, and their first lines say so."""
    bare = []
    for path in sorted(ROOT.rglob("*.py")):
        if path.name in {"app.py", "app_groups.py"} or path.parent.name in {"_ipython_kernel", "_in_sandbox"}:
            continue  # the latter two run in a sandbox, as scripts
        lines = path.read_text(encoding="utf-8").splitlines()
        for function in ast.walk(_parsed(path)):
            if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                for node in ast.walk(function):
                    if isinstance(node, ast.Import | ast.ImportFrom):
                        reason = lines[node.lineno - 1].partition("# noqa: PLC0415 - ")[2]
                        if len(reason) < 10 or reason.startswith("as "):
                            bare.append(f"{path.relative_to(ROOT)}:{node.lineno} {reason}")
    assert bare == []


@pytest.mark.parametrize("statement", ["import ohsandbox", "from ohsandbox.cli.app import app"])
def test_a_bare_import_loads_nothing_slow(statement: str) -> None:
    assert _loaded(statement) == []


def test_help_loads_nothing_slow_and_no_pydantic() -> None:
    statement = (
        "from ohsandbox.cli.app import app\n"
        "with contextlib.redirect_stdout(io.StringIO()): app(['--help'], standalone_mode=False)"
    )
    assert _loaded(statement, (*SLOW, "pydantic")) == []


def test_a_run_starts_with_few_packages_and_with_none_of_the_network() -> None:
    """Each costs every first request its time; what only some runs need is imported where they need it."""
    program = "import ohsandbox.cli.commands.plain_run, ohsandbox.runtime.docker.runtime, sys; print([*sys.modules])"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True, text=True)
    loaded: set[str] = set(ast.literal_eval(ended.stdout))
    bare = subprocess.run([sys.executable, "-c", "import sys; print([*sys.modules])"], capture_output=True, check=True)
    loaded -= set(ast.literal_eval(bare.stdout.decode()))  # an environment may have some of its own
    packages = {name.partition(".")[0] for name in loaded} - sys.stdlib_module_names
    assert {one for one in packages if not one.startswith("_")} <= STARTS_WITH
    assert [name for name in loaded if name.startswith("ohsandbox.network.") and name not in NETWORK_STARTS_WITH] == []


def test_a_run_asks_for_its_sandbox_before_it_imports_what_works_in_it() -> None:
    ours = ("ohsandbox.agent", "ohsandbox.conversation", "ohsandbox.events", "ohsandbox.persistence", "ohsandbox.tools")
    assert _loaded("import ohsandbox.cli.commands.run", (*SLOW, "rich.console", *ours)) == []


def test_an_evaluation_that_asks_no_model_loads_no_agent() -> None:
    ours = ("ohsandbox.agent", "ohsandbox.conversation", "ohsandbox.llm", "ohsandbox.cli.commands.eval_reports")
    assert _loaded("import ohsandbox.cli.commands.eval", (*SLOW, "jinja2", *ours)) == []


def _loaded(statement: str, names: tuple[str, ...] = SLOW) -> list[str]:
    program = f"import contextlib, io, sys\n{statement}\nprint([n for n in {names!r} if n in sys.modules])"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True, text=True)
    found: list[str] = ast.literal_eval(ended.stdout)
    return found


def test_every_public_name_is_there() -> None:
    for name in ohsandbox.__all__:
        assert getattr(ohsandbox, name) is not None


def test_the_public_names_are_sorted_and_shown() -> None:
    assert len(set(ohsandbox.__all__)) == len(ohsandbox.__all__)
    assert dir(ohsandbox) == sorted(ohsandbox.__all__)


def test_docker_is_imported_in_its_own_package_the_factory_and_the_doctor_only() -> None:
    allowed = {"runtime/factory.py", "cli/commands/doctor.py", "evaluation/images.py", "evaluation/compose.py"}
    for path in sorted(ROOT.rglob("*.py")):
        name = path.relative_to(ROOT).as_posix()
        if name.startswith("runtime/docker/") or name in allowed or name == "__init__.py":
            continue
        modules = {one for node in ast.walk(_parsed(path)) for one in _modules(node) + _named_modules(node, path)}
        used = {one for one in modules if re.match(r"(ohsandbox\.runtime\.)?docker(\.|$)", one)}
        assert not used, f"{name} imports {used}"


def test_nothing_asks_for_the_name_of_a_backend() -> None:
    asks = re.compile(r"""(?:\b(?:runtime|backend)\)?\s+in\s*[\[({]*|[=!]=\s*)["'](?:cli|docker|ssh)["']""")
    rules = ROOT / "conversation" / "approvals" / "rules"  # of the programs with these names
    asking = [path for path in ROOT.rglob("*.py") if asks.search(path.read_text(encoding="utf-8"))]
    assert [path for path in asking if rules not in path.parents] == []


def test_a_name_that_is_not_public_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="nonsense"):
        _ = ohsandbox.nonsense  # type: ignore[attr-defined]


def test_the_version_is_that_of_the_project_file() -> None:
    project = tomllib.loads((ROOT.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["version"] == ohsandbox.__version__
