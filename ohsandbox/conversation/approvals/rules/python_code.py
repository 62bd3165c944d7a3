"""Rules for Python code and IPython cells: code that runs commands, deletes, sends, or cannot be read."""

from __future__ import annotations

import ast
import re
import shlex
import sys
import warnings
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from ohsandbox.conversation.approvals.rules import Finding, known_names, quoted
from ohsandbox.conversation.approvals.rules.known_programs import variable_kinds
from ohsandbox.conversation.approvals.rules.paths import secret_of_word
from ohsandbox.conversation.approvals.rules.variables import RUN_BY_SHELL

if TYPE_CHECKING:
    from collections.abc import Iterator

HARMLESS_MODULES = known_names("harmless modules")
HARMLESS_CALLS = known_names("harmless calls")
EVALUATES = known_names("evaluates")
LOG_FILES = known_names("log files")
_RUNS = known_names("runs")
_RUNS_ALWAYS = _RUNS - {"run", "call", "spawn", "magic", "fork"}
"""Names that always run commands, on any object."""

_RUNNERS = known_names("running modules")
_UNREADABLE_MODULES = known_names("unreadable modules")
_HARMLESS_PARTS = frozenset({"importlib.metadata", "importlib.resources", "importlib.util"})
_UNREADABLE = known_names("unreadable")
_ALSO_METHODS = frozenset({"compile", "eval", "kill", "extract", "vars", "locals"})
"""Names of EVALUATES that methods of harmless objects have as well."""

_DELETES_TREE = frozenset({"rmtree", "removedirs"})
_DELETES = known_names("writes or deletes")
_OPENS = frozenset({"open", "ZipFile", "TarFile"})
_MAKES_TEMPORARY = frozenset({"NamedTemporaryFile", "mkdtemp", "mkstemp", "TemporaryDirectory"})
_FINDS_PATHS = known_names("finds paths")
"""Names by which code gets a path that is no constant of it."""

_PATH_KEYWORDS = known_names("path keywords")
_KNOWN_NAMES = HARMLESS_CALLS | sys.stdlib_module_names | {"Path", "PurePath", "PosixPath"}
_COMMAND_KEYWORDS = frozenset({"args", "argv", "cmd", "command", "executable", "file", "path"})
_OUTSIDE = re.compile(r"(?:~|/(?:root|home|Users|etc|usr|var|opt|s?bin|lib|boot|srv|proc|sys|dev)(?:/|$))\S*")
_PATHS = frozenset({"Path", "PurePath", "PosixPath"})
_THIS_MACHINE = re.compile(r"https?://(?:localhost|127\.0\.0\.1)(?::\d+)?(?:[/?#]|$)")
_PICKLES = known_names("pickles")
_LOADS = frozenset({"load", "loads", "load_all", "Unpickler"})
_PLAIN_LOADERS = known_names("plain loaders")
_RUNS_TEXT = frozenset({"timeit", "repeat", "Timer", "runctx", "runeval"})
_NETWORK_MODULES = known_names("network modules")
_SENDS = known_names("sends")

_MAGIC = re.compile(r"^(?P<indent>[ \t]*)(?P<to>[\w,.\[\]][\w, \t.\[\]]*=[ \t]*)?(?P<mark>!!?|%)(?P<text>.*)$")
_AUTOMAGIC = re.compile(
    r"[ \t]*(?:rm|mv|cp|rmdir|mkdir|ln|cd|sx|system|alias|pip|conda)[ \t]+"
    r"(?![=.,(\[+*<>!&|^%]|(?:in|is|and|or|if|not)\b)\S"
)
"""A line that IPython runs as a magic or an alias without `%`; some are valid Python too: `rm -rf / x`."""

_CELL = re.compile(r"\s*%%(?P<name>!|[\w.]+)[ \t]*(?P<line>[^\n]*)\n?(?P<body>.*)", re.DOTALL)
_SHELL_CELLS = frozenset({"bash", "sh", "!", "sx", "system", "script"})
_PLAIN_CELLS = frozenset({"time", "timeit", "capture", "prun"})
_SHELL_MAGICS = frozenset({"system", "sx", "sc", "bash", "sh"})
_PLAIN_MAGICS = known_names("plain magics")


class CodeReading(NamedTuple):
    """Findings in code, and the shell texts and argvs that it runs."""

    findings: list[Finding]
    texts: list[str]


def read_cell(code: str) -> CodeReading:
    """Read an IPython cell: magics and `!` lines are shell texts, the rest is Python."""
    match = _CELL.match(code)
    if match is None:
        return _read_lines(code)
    name, line, body = match["name"], match["line"], match["body"]
    if name in _SHELL_CELLS:
        return CodeReading([], [f"{line}\n{body}" if name in {"!", "sx", "system"} else body])
    if name in _PLAIN_CELLS:
        return _read_lines(f"{line if name in {'time', 'timeit', 'prun'} and not line.startswith('-') else ''}\n{body}")
    if name in {"writefile", "file"}:
        target = line.split()[-1] if line.split() else ""
        return CodeReading([], [f": > {shlex.quote(target)}"])
    return CodeReading([Finding("MEDIUM", f"A cell that the rules cannot read: {quoted('%%' + name)}.")], [code])


def _read_lines(code: str) -> CodeReading:
    findings: list[Finding] = []
    texts: list[str] = []
    python_lines: list[str] = []
    for line in code.split("\n"):
        magic = _MAGIC.match(line)
        if magic is None:
            python_lines.append(line)
            texts += [line] if _AUTOMAGIC.match(line) else []
            continue
        python_lines.append(f"{magic['indent']}pass")
        name, _, rest = magic["text"].strip().partition(" ")
        if magic["mark"] != "%" or name in _SHELL_MAGICS:
            texts.append(magic["text"] if magic["mark"] != "%" else rest)
        elif name in {"pip", "conda", "mamba"}:
            texts.append(f"{name} {rest}")
        elif name in {"time", "timeit"}:
            python_lines[-1] = f"{magic['indent']}{rest if not rest.startswith('-') else 'pass'}"
        elif name == "cd":
            texts.append(f"cd {rest}")
        elif name not in _PLAIN_MAGICS:
            findings.append(Finding("MEDIUM", f"A magic that the rules cannot read: {quoted('%' + name)}."))
            texts += [f"{name} {rest}"] if name in {"rm", "mv", "cp", "mkdir", "rmdir", "alias"} else []
    read = read_python("\n".join(python_lines))
    return CodeReading(findings + read.findings, texts + read.texts)


def read_python(code: str) -> CodeReading:
    """Read the effects that Python code names literally; computed names are MEDIUM."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # warnings about escapes in strings
            tree = ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return CodeReading([Finding("MEDIUM", f"Code that the rules cannot read ({type(error).__name__}).")], [])
    reader = _PythonReader(tree)
    for node in ast.walk(tree):
        reader.look(node)
    reader.finish()
    return CodeReading(list(dict.fromkeys(reader.findings)), reader.texts)


class _PythonReader:
    def __init__(self, tree: ast.AST) -> None:
        self.findings: list[Finding] = []
        self.texts: list[str] = []
        nodes = [*ast.walk(tree)]
        self._called = {id(node.func) for node in nodes if isinstance(node, ast.Call)}
        definitions = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
        self._defined = {node.name for node in nodes if isinstance(node, definitions)}
        bound = Counter(getattr(node, "id", getattr(node, "arg", "")) for node in nodes if _binds(node))
        named = [
            (node.targets[0].id, _path(node.value))
            for node in nodes
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
        ]
        self._paths = {name: path for name, path in named if path is not None and bound[name] == 1}
        """Variables that hold one constant path."""
        self._bound = frozenset(bound)
        self._computes_path = False
        """Whether it writes or deletes a file of which no constant is the path."""
        self._unpickles = any(
            alias.name.split(".")[0] in _PICKLES or (isinstance(node, ast.ImportFrom) and node.module in _PICKLES)
            for node in nodes
            if isinstance(node, ast.Import | ast.ImportFrom)
            for alias in node.names
        )
        """Whether it imports a module whose `load` runs code."""
        self._known_searches = {id(use) for node in nodes for use in _known_searches(node)}
        self._outside: set[str] = set()
        """Constants that are paths outside a workspace, and names by which it may get one."""

    def look(self, node: ast.AST) -> None:
        self.texts += [f"{name}={shlex.quote(value)} :" for name, value in _variables(node)]
        if isinstance(node, ast.Import | ast.ImportFrom):
            self.findings += [*_import_findings(node), *_renaming_findings(node)]
        elif isinstance(node, ast.Attribute):
            self._name(node.attr, base=_base(node))
            if node.attr == "path" and _base(node) == "sys" and id(node) not in self._known_searches:
                self.findings.append(Finding("MEDIUM", "Changes where Python finds modules (sys.path)."))
            if id(node) not in self._called and isinstance(node.ctx, ast.Load):
                if node.attr in _RUNS_ALWAYS or (node.attr in _LOADS and _base(node) in _PICKLES):
                    self.findings.append(Finding("HIGH", f"Runs programs by another name ({node.attr})."))
                self._computes_path |= node.attr in _DELETES | _DELETES_TREE and _base(node) in {"os", "shutil"}
        elif isinstance(node, ast.Name):
            self._name(node.id, base="")
            if node.id in {"getattr", "setattr"} and id(node) not in self._called:
                self.findings.append(Finding("HIGH", f"Does what the rules cannot read ({node.id} as a value)."))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            self._constant(node.value)
        elif isinstance(node, ast.Call):
            self._call(node)

    def finish(self) -> None:
        """Add what only the whole code shows: that a path which it computes may be outside the workspace."""
        if self._computes_path and self._outside:
            self.texts += [
                f": > {shlex.quote(path)}"
                for path in sorted(self._outside)
                if path not in _FINDS_PATHS and path[0] != "$"
            ]
            self.findings.append(Finding("MEDIUM", "Writes or deletes a file whose path it computes."))

    def _constant(self, text: str) -> None:
        if secret_of_word(text):
            self.findings.append(Finding("HIGH", f"Touches keys or passwords: {quoted(text)}."))
        if _OUTSIDE.fullmatch(text):
            self._outside.add(text)
        if text in RUN_BY_SHELL and text != "ENV":
            self.findings.append(Finding("HIGH", f"Names {text}, by which other programs run code unasked."))
        elif text in {"HOME", "USERPROFILE"}:
            self._outside.add("~/x")

    def _writes_to(self, *targets: ast.AST | None) -> None:
        """Note paths that are written or deleted."""
        for target in filter(None, targets):
            path = self._paths.get(target.id) if isinstance(target, ast.Name) else _path(target)
            if isinstance(target, ast.Constant) and path is None:
                continue
            if path is None:
                self._computes_path = True
                used = {node.id for node in ast.walk(target) if isinstance(node, ast.Name)}
                if unknown := used - self._bound - _KNOWN_NAMES:
                    self._outside.add(f"${min(unknown)}")
            elif not re.search(r"\s", path):
                self.texts.append(f": > {shlex.quote(path)}")

    def _name(self, name: str, *, base: str) -> None:
        if name in _FINDS_PATHS:
            self._outside.add("~/x" if name in {"home", "expanduser"} else name)
        runs = name in _RUNS_ALWAYS if base != "" else name in _RUNS_ALWAYS - {"system", "popen", "pty", "call"}
        if runs or (name in _RUNS and base in _RUNNERS):
            self.findings.append(Finding("MEDIUM", f"Runs programs ({name})."))
        elif name in EVALUATES and (name not in _ALSO_METHODS or base in {"", "builtins", "?os", "os"}):
            self.findings.append(Finding("HIGH", f"Does what the rules cannot read ({name})."))
        elif name in _UNREADABLE and not (
            name in {"compile", "modules", "eval"} and base not in {"", "sys", "builtins"}
        ):
            self.findings.append(Finding("MEDIUM", f"Does what the rules cannot read ({name})."))
        elif name in _DELETES_TREE:
            self.findings.append(Finding("MEDIUM", "Deletes a whole tree."))

    def _call(self, node: ast.Call) -> None:
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        base = _base(node.func)
        first = node.args[0] if node.args else None
        known = (
            name in HARMLESS_CALLS or name in self._defined or name in _DELETES or name in _RUNS or name in EVALUATES
        )
        if not known:
            self._unknown_call(node, name)
        if base in _NETWORK_MODULES:
            self.findings.append(Finding("MEDIUM", f"Uses the network (module {base})."))
        self._evaluating_call(node, name, base)
        self._file_call(node, name, base)
        if ast.unparse(node.func).startswith("sys.path."):
            self.texts += [f"PYTHONPATH={shlex.quote(text)} :" for text in map(_path, node.args) if text is not None]
        keywords = {keyword.arg for keyword in node.keywords}
        if name == "getattr" and not (len(node.args) > 1 and isinstance(node.args[1], ast.Constant)):
            self.findings.append(Finding("HIGH", "Does what the rules cannot read (getattr of a computed name)."))
        elif name == "getattr" and len(node.args) > 1:
            self._name(_string(node.args[1]) or "", base="?")
        elif name in _RUNS:
            self._run_call(node)
        elif (
            name in _SENDS or (name in {"urlopen", "Request"} and ("data" in keywords or len(node.args) > 1))
        ) and not (first is not None and re.match(_THIS_MACHINE, _string(first) or "")):
            self.findings.append(Finding("HIGH", "Sends data over the network."))

    def _evaluating_call(self, node: ast.Call, name: str, base: str) -> None:
        """A call that evaluates a text, or data that hold code."""
        is_plain = "weights_only=True" in map(ast.unparse, node.keywords)
        is_pandas = name == "eval" and isinstance(node.func, ast.Attribute) and (node.args or node.keywords)
        if (
            is_pandas
            or (name in {"open", "decode"} and base in _PICKLES)
            or (
                name in _LOADS and base not in _PLAIN_LOADERS and (base in _PICKLES or self._unpickles) and not is_plain
            )
            or _is_unpickling(node, name, base)
        ):
            self.findings.append(Finding("HIGH", f"Does what the rules cannot read ({base}.{name})."))
        elif name in _LOADS and base not in _PLAIN_LOADERS | {""} and not is_plain:
            self.findings.append(Finding("MEDIUM", f"The rules do not know what {quoted(f'{base}.{name}')} does."))
        if name in _RUNS_TEXT or (name == "run" and base in {"cProfile", "profile", "pdb", "trace"}):
            for text in filter(None, map(_string, node.args)):
                inner = read_python(text)
                self.findings += inner.findings
                self.texts += inner.texts

    def _file_call(self, node: ast.Call, name: str, base: str) -> None:
        """A call that writes or deletes files."""
        named = [keyword.value for keyword in node.keywords if keyword.arg is None or _path(keyword.value) is not None]
        given = [*node.args[:2], *named, *(word.value for word in node.keywords if word.arg in _PATH_KEYWORDS)]
        owner = getattr(node.func, "value", None)
        if name in _DELETES_TREE:
            self.texts += [f"rm -r {shlex.quote(path)}" for path in map(_path, given) if path is not None]
            self._writes_to(*given[:1])
        elif name in _OPENS:
            of_path = _is_path(owner)
            targets = [owner] if of_path else [*node.args[:1], *given[len(node.args[:2]) :]]
            self._writes_to(*targets if _writes(node, mode_at=0 if of_path else 1) else ())
        elif name in {"input", "FileInput"} and any(keyword.arg == "inplace" for keyword in node.keywords):
            self._writes_to(*given)
        elif name in _MAKES_TEMPORARY:
            self._writes_to(*named, *node.args[2:3])
        elif name in _DELETES and (base in {"os", "shutil"} or (base == "" and name != "replace")):
            self._writes_to(*given)
        elif name in _DELETES:
            is_file = name not in {"replace", "remove", "copy", "move"} or _is_path(owner)  # of lists and texts, too
            self._writes_to(
                owner if is_file else None,
                *named,
                *(argument for argument in node.args[:1] if _path(argument) is not None),
            )

    def _unknown_call(self, node: ast.Call, name: str) -> None:
        """A call that the rules do not know may write each path that it is given."""
        given = [*node.args, *(keyword.value for keyword in node.keywords)]
        paths = [text for argument in given if (text := _path(argument)) is not None and not re.search(r"[\s{}]", text)]
        self.texts += [f": > {shlex.quote(path)}" for path in paths if path.startswith(("/", "~", "..", ".git/"))]
        if name in LOG_FILES and given and not paths:
            self.findings.append(Finding("HIGH", f"Writes a file that the code computes ({name})."))
        self.findings.append(Finding("MEDIUM", f"The rules do not know what {quoted(name or 'a call')} does."))

    def _run_call(self, node: ast.Call) -> None:
        before = len(self.texts)
        for argument in [
            *node.args[:2],
            *(keyword.value for keyword in node.keywords if keyword.arg in _COMMAND_KEYWORDS),
        ]:
            text = _string(argument)
            if text is not None:
                self.texts.append(text)
            elif isinstance(argument, ast.List | ast.Tuple):
                words = [_string(item) for item in argument.elts]
                self.texts.append(" ".join("$computed" if word is None else shlex.quote(word) for word in words))
        strings = [text for argument in node.args if (text := _string(argument)) is not None]
        if len(strings) > 1:  # `os.execlp("rm", "rm", "-rf", "/")`
            self.texts += [" ".join(map(shlex.quote, strings)), " ".join(map(shlex.quote, strings[1:]))]
        is_method = _base(node.func) not in _RUNNERS and getattr(node.func, "attr", "") in {"run", "call"}
        if (node.args and len(self.texts) == before and not is_method) or any(
            "$computed" in text.split(" ", 1)[0] for text in self.texts[before:]
        ):
            self.findings.append(Finding("HIGH", "Runs programs that the code computes."))


def _import_findings(node: ast.Import | ast.ImportFrom) -> Iterator[Finding]:
    if isinstance(node, ast.ImportFrom):
        modules = [node.module or ""]
        names = {alias.name for alias in node.names}
        root = modules[0].split(".")[0]
        if root in _RUNNERS and names & (_RUNS | {"*"}):
            renames = any(alias.asname for alias in node.names)
            yield Finding("HIGH" if renames else "MEDIUM", f"Runs programs (from {root}).")
    else:
        modules = [alias.name for alias in node.names]
    for module in modules:
        root = module.split(".")[0]
        if root in {"ctypes", "cffi"}:
            yield Finding("HIGH", f"Does what the rules cannot read (module {root}).")
        elif root in _UNREADABLE_MODULES and module not in _HARMLESS_PARTS:
            yield Finding("MEDIUM", f"Does what the rules cannot read (module {root}).")
        elif root in _NETWORK_MODULES and module not in {"urllib.parse", "http"}:
            yield Finding("MEDIUM", f"Uses the network (module {root}).")
        elif root in sys.stdlib_module_names and root not in HARMLESS_MODULES | _NETWORK_MODULES:
            yield Finding("MEDIUM", f"The rules do not know what the module {root} is used for.")


def _renaming_findings(node: ast.Import | ast.ImportFrom) -> Iterator[Finding]:
    """Findings in imports that give a name by which the rules would not know a call."""
    root = ((node.module or "") if isinstance(node, ast.ImportFrom) else "").split(".")[0]
    for alias in node.names:
        if (root, alias.name) == ("sys", "path") or (alias.asname and (root, alias.name) == ("", "sys")):
            yield Finding("MEDIUM", "Changes where Python finds modules (sys.path).")
        if alias.asname and (root == "yaml" or (root in _PICKLES and alias.name in _LOADS)):
            yield Finding("HIGH", f"Does what the rules cannot read ({root}.{alias.name}).")


def _variables(node: ast.AST) -> Iterator[tuple[str, str]]:
    """Constants that may set a variable by which programs work: of an item of a dictionary, or of a word of a call."""
    pairs: list[tuple[ast.AST | None, ast.AST]] = []
    if isinstance(node, ast.Dict):
        pairs = list(zip(node.keys, node.values, strict=True))
    elif isinstance(node, ast.Assign):
        pairs = [(target.slice, node.value) for target in node.targets if isinstance(target, ast.Subscript)]
    elif isinstance(node, ast.Call):
        pairs = [(ast.Constant(keyword.arg), keyword.value) for keyword in node.keywords]
        pairs += [(node.args[0], node.args[1])] if len(node.args) > 1 else []
    for key, value in pairs:
        name, text = _string(key), _string(value)
        if name is not None and name.isupper() and text is not None and set(variable_kinds(name)) - {"text"}:
            yield name, text


def _binds(node: ast.AST) -> bool:
    return hasattr(node, "annotation") or (isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load))


def _base(node: ast.AST) -> str:
    value = getattr(node, "value", None)
    if isinstance(value, ast.Name):
        return value.id
    return "" if value is None else "?"


def _known_searches(node: ast.AST) -> Iterator[ast.AST]:
    """`sys.path` where it is only read, or gets a constant path."""
    if isinstance(node, ast.For | ast.comprehension):
        yield node.iter
    elif isinstance(node, ast.Call):
        name = getattr(node.func, "id", getattr(node.func, "attr", ""))
        if name in {"print", "pprint", "len", "list", "sorted", "repr", "str", "join"}:
            yield from node.args
        elif name in {"insert", "append"} and node.args and _path(node.args[-1]) is not None:
            yield getattr(node.func, "value", node)


def _is_unpickling(node: ast.Call, name: str, base: str) -> bool:
    """Whether the call reads data whose objects may run code, beside those of pickle itself."""
    given = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
    loader = given.get("Loader") or (ast.unparse(node.args[1]) if len(node.args) > 1 else "SafeLoader")
    allows = given.get("allow_pickle") or (ast.unparse(node.args[2]) if len(node.args) > 2 else "False")  # noqa: PLR2004 - numpy.load
    return (
        name in {"read_pickle", "unsafe_load", "unsafe_load_all", "full_load", "full_load_all"}
        or (
            name in {"load", "load_all"}
            and (base == "yaml" or loader.endswith("Loader"))
            and not loader.endswith(("SafeLoader", "BaseLoader"))
        )
        or (name == "load" and (given.get("weights_only") == "False" or allows != "False" or None in given))
    )


def _string(node: ast.AST | None) -> str | None:
    """The node's text, with `$computed` for parts that are not constant; None if it is not a string."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else None
    if isinstance(node, ast.JoinedStr):
        return "".join(str(part.value) if isinstance(part, ast.Constant) else "$computed" for part in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Mod):
        pieces: list[str] = []
        while isinstance(node, ast.BinOp):
            right = node.right
            pieces.append(
                right.value if isinstance(right, ast.Constant) and isinstance(right.value, str) else "$computed"
            )
            node = node.left
        first = node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else "$computed"
        return "".join([first, *reversed(pieces)])
    return None


def _path(node: ast.AST | None) -> str | None:
    """A constant path, also in `Path(...)`; "~" is never expanded."""
    if isinstance(node, ast.Call) and node.args and _base(node.func) in {"", "pathlib"}:
        return _path(node.args[0]) if _is_path(node) else None
    if isinstance(node, ast.Call) and getattr(node.func, "attr", "") in {"expanduser", "join"} and node.args:
        return _path(node.args[0])
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    return None


def _is_path(node: ast.AST | None) -> bool:
    """Whether it is `Path(...)`, or a method or an operation of one."""
    while isinstance(node, ast.BinOp | ast.Attribute | ast.Call):
        if isinstance(node, ast.Call) and getattr(node.func, "id", getattr(node.func, "attr", "")) in _PATHS:
            return True
        parts = {ast.BinOp: "left", ast.Attribute: "value", ast.Call: "func"}
        node = getattr(node, parts[type(node)])
    return isinstance(node, ast.Name) and node.id in _PATHS


def _writes(node: ast.Call, *, mode_at: int) -> bool:
    if {"O_WRONLY", "O_RDWR", "O_CREAT"} & {getattr(part, "attr", "") for part in ast.walk(node)}:
        return True
    modes = [*node.args[mode_at : mode_at + 1], *(each.value for each in node.keywords if each.arg in {"mode", None})]
    text = _string(modes[0]) if modes else "r"
    return text is None or bool(set(text) & set("wax+"))
