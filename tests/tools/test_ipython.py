from __future__ import annotations

import base64
import os
import subprocess
import sys
import threading
import time
import zipfile
from typing import TYPE_CHECKING, Any

import pytest

from ohsandbox import CLIRuntime
from ohsandbox.content import ImageContent
from ohsandbox.errors import SandboxUnavailable, ToolArgumentsError, ToolError, UsageError
from ohsandbox.schema import text_of
from ohsandbox.state import ConversationState
from ohsandbox.tools.execute_ipython_cell import IPythonObservation, make_execute_ipython_cell_tool

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from ohsandbox.runtime.base import Runtime

PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n and so on IEND\xaeB`\x82").decode()
PICTURE = (
    f"class Picture:\n    def _repr_png_(self):\n        import base64\n        return base64.b64decode('{PNG}')\n"
)
FORK = "import multiprocessing\ncontext = multiprocessing.get_context('fork')\n"


class Kernel:
    """The tool, as a model uses it."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        state = ConversationState(conversation_id="c", runtime=runtime)
        self.tool = make_execute_ipython_cell_tool(conv_state=state)

    def cell(self, code: str, **arguments: Any) -> IPythonObservation:
        return self.tool(self.tool.action_from_arguments({"code": code, **arguments}))

    def say(self, code: str, **arguments: Any) -> str:
        return text_of(self.cell(code, **arguments))


def until(happened: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not happened() and time.monotonic() < deadline:
        time.sleep(0.01)


@pytest.fixture(scope="session")
def plain_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `bin` of a Python that has nothing installed."""
    folder = tmp_path_factory.mktemp("plain")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    return folder / "bin"


@pytest.fixture(scope="session")
def with_ipython(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `bin` of a Python that has IPython, installed from the registry that pip is configured with."""
    folder = tmp_path_factory.mktemp("ipython")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    [packages] = folder.glob("lib/python3*/site-packages")
    words: list[str | Path] = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "-q",
        "--no-compile",
        "--target",
        packages,
        "ipython",
        "pip",
    ]
    installed = subprocess.run(words, capture_output=True, text=True, check=False)
    if installed.returncode:
        said = installed.stderr.strip()[-200:]
        if os.environ.get("CI") == "true":
            pytest.fail(f"IPython cannot be installed: {said}", pytrace=False)
        pytest.skip(f"IPython cannot be installed: {said}")
    return folder / "bin"


@pytest.fixture(scope="session")
def kernels(
    request: pytest.FixtureRequest, started: Callable[[str], Runtime], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[str], Kernel]]:
    """`kernels(place)` is one there, shared by the tests."""
    made: dict[str, Kernel] = {}

    def get(place: str) -> Kernel:
        if place not in made:
            made[place] = Kernel(started("debian") if place == "debian" else on_this_host(place))
        return made[place]

    def on_this_host(place: str) -> Runtime:
        programs = request.getfixturevalue("plain_python" if place == "plain" else "with_ipython")
        env = {"PATH": f"{programs}:/usr/bin:/bin"}
        runtime = CLIRuntime(tmp_path_factory.mktemp(place), env=env, bubblewrap=False, quiet=True).start()
        request.addfinalizer(runtime.close)
        return runtime

    yield get
    for kernel in made.values():
        kernel.tool.close()


@pytest.fixture(params=[pytest.param("debian", marks=pytest.mark.docker), "plain", "ipython"])
def kernel(request: pytest.FixtureRequest, kernels: Callable[[str], Kernel]) -> Kernel:
    """Our own shell in a container and on this host, and IPython on this host."""
    return kernels(request.param)


@pytest.fixture
def plain(kernels: Callable[[str], Kernel]) -> Kernel:
    return kernels("plain")


def test_each_kernel_is_what_it_should_be(kernel: Kernel, request: pytest.FixtureRequest) -> None:
    said = kernel.say("", reset=True)
    assert ("without IPython" in said) == (request.node.callspec.params["kernel"] != "ipython")


def test_variables_stay_and_the_last_value_is_shown(kernel: Kernel) -> None:
    kernel.say("", reset=True)
    assert kernel.say("x = 41") == "[The cell printed nothing and has no value.]"
    assert kernel.say("print('first')\nx + 1") == "first\nOut[2]: 42"
    assert kernel.say("x + 1;") == "[The cell printed nothing and has no value.]"
    assert kernel.say("_ + 1") == "Out[4]: 43"


@pytest.mark.parametrize(
    ("code", "shown"),
    [
        ("import asyncio\nawait asyncio.sleep(0.01)\n'waited'", "'waited'"),
        ("__name__, __import__('sys').modules['__main__'].__dict__ is globals()", "('__main__', True)"),
        ("class A: pass\nimport pickle\ntype(pickle.loads(pickle.dumps(A()))) is A", "True"),
        (f"{FORK}def square(x): return x * x\nwith context.Pool(2) as p: r = p.map(square, [2, 3])\nr", "[4, 9]"),
        ("from __future__ import annotations\ndef f(x: Unknown): pass\nf.__annotations__", "{'x': 'Unknown'}"),
        ("name = 'a b'\nx = !echo '{name}'; echo $name; echo $((1+1))\nlist(x)", "['a b', 'a b', '2']"),
        ("text = '''\n!not a command\n%pip\n'''\ntext", r"'\n!not a command\n%pip\n'"),
        ("import os\nos.getcwd() == os.path.realpath('.'), os.environ['MPLBACKEND']", "(True, 'agg')"),
        ("import sys\nsys.stdin.read(), sys.argv", "('', [''])"),
        ("class H:\n    def _repr_html_(self): return '<b>bold</b>'\nH()", "<b>bold</b>"),
        ("['word'] * 20", "[" + "'word', " * 11 + "'word',\n " + "'word', " * 7 + "'word']"),
    ],
)
def test_cell_has_a_value(kernel: Kernel, code: str, shown: str) -> None:
    assert kernel.say(code).split(": ", 1)[1].removeprefix("\n") == shown


def test_names_of_the_kernel_itself_are_not_the_cells(plain: Kernel) -> None:
    plain.say("", reset=True)
    module = "['__builtins__', '__doc__', '__loader__', '__name__', '__package__', '__spec__']"
    assert plain.say("print(dir())") == module


def test_all_that_the_process_tree_prints_comes_in_order(kernel: Kernel) -> None:
    code = """import ctypes, os, subprocess, sys
print('1 print'); print('2 stderr', file=sys.stderr)
subprocess.run(['sh', '-c', 'echo 3 child; echo 4 child >&2'])
ctypes.CDLL(None).puts(b'5 C')
print('6 no newline', end='; '); os.system('echo 7 system')
!echo 8 command"""
    expected = "1 print\n2 stderr\n3 child\n4 child\n5 C\n6 no newline; 7 system\n8 command"
    assert kernel.say(code) == expected


@pytest.mark.parametrize(
    ("code", "error", "lines"),
    [
        ("def f():\n    raise KeyError('k')\nf()", "KeyError: 'k'", ['File "<cell N>", line 3', "line 2, in f"]),
        ("async def f():\n    return 1 / 0\nawait f()", "ZeroDivisionError: division by zero", ["line 2, in f"]),
        ("import json\njson.loads('{')", "json.decoder.JSONDecodeError: ", ["decoder.py"]),
        ("if 1:\n    x = = 2", "SyntaxError: invalid syntax", ["x = = 2"]),
        ("input('name? ')", "EOFError: input() gets no answer here", ["line 1"]),
        ("import sys\nsys.exit(3)", "SystemExit: 3", []),
    ],
)  # fmt: skip
def test_exception_is_an_answer_with_a_short_traceback(kernel: Kernel, code: str, error: str, lines: list[str]) -> None:
    kernel.say("", reset=True)
    observation = kernel.cell(code)
    assert observation.error is not None
    assert observation.error.startswith(error)
    assert not observation.is_error
    text = text_of(observation).replace("<cell 1>", "<cell N>")
    assert all(line in text for line in lines)
    assert "ohsandbox" not in text
    assert "IPython/" not in text
    assert "asyncio/" not in text


@pytest.mark.parametrize("code", ["!kill -9 $PPID", "import os\nos._exit(3)", "import ctypes\nctypes.string_at(0)"])
def test_death_of_the_kernel_is_told_with_what_it_printed(kernel: Kernel, code: str) -> None:
    kernel.say("kept = 1")
    observation = kernel.cell(f"print('before')\n{code}")
    assert observation.is_error
    assert observation.text.startswith("before")
    assert "<ohsandbox>" not in observation.text
    assert "All variables are lost" in str(observation.notice)
    assert kernel.cell("kept").error == "NameError: name 'kept' is not defined"


def test_death_between_two_cells_is_told_by_the_second(plain: Kernel) -> None:
    plain.say("import os, threading, time\nthreading.Timer(0.1, os._exit, [4]).start()")
    until(lambda: not plain.tool.executor._driver.facts)  # type: ignore[union-attr]
    said = plain.say("'new'")
    assert said.startswith("Out[1]: 'new'\n[Between two cells: The Python kernel ended with exit code 4.")


@pytest.mark.slow
@pytest.mark.parametrize(
    "code",
    [
        "import time\ntime.sleep(60)",
        "while True: pass",
        "import os\nos.system('sleep 60')",
        "import subprocess\nsubprocess.run(['sleep', '60'])",
        "!sleep 60",
        "import asyncio\nawait asyncio.sleep(60)",
        "import time\ntry: time.sleep(60)\nexcept KeyboardInterrupt: pass",
    ],
)
def test_timeout_interrupts_the_cell_and_keeps_the_variables(kernel: Kernel, code: str) -> None:
    kernel.say("kept = 'kept'")
    observation = kernel.cell(f"{code}\n", timeout=0.2)
    assert observation.timed_out
    assert not observation.kernel_died
    assert "Interrupted after 0.2 s; variables are kept" in text_of(observation)
    assert kernel.say("kept").endswith(": 'kept'")


def test_cell_that_was_interrupted_in_await_does_not_go_on_later(kernel: Kernel) -> None:
    executor = kernel.tool.executor
    assert executor is not None
    directory = kernel.runtime.run(["mktemp", "-d"]).stdout.decode().strip()

    def interrupt() -> None:
        until(lambda: kernel.runtime.run(["test", "-e", f"{directory}/awaits"]).exit_code == 0)
        executor.interrupt()

    kernel.say("import asyncio; go = asyncio.Event()")
    thread = threading.Thread(target=interrupt)
    thread.start()
    observation = kernel.cell(
        f"asyncio.get_running_loop().call_soon(lambda: open('{directory}/awaits', 'w').close())\n"
        "await go.wait()\nprint('too late')"
    )
    thread.join()
    assert "line 2, in <module>\n    await go.wait()\nKeyboardInterrupt" in observation.text
    assert kernel.say("go.set()\nfor _ in range(9): await asyncio.sleep(0)\n'quiet'").split(": ")[1] == "'quiet'"


def test_cell_that_ignores_its_interrupt_takes_the_kernel_with_it(
    plain: Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ohsandbox.tools.execute_ipython_cell.KILL_AFTER_S", 2.0)
    plain.say("child = __import__('subprocess').Popen(['sleep', '1000'])")
    code = "import time\nprint('on')\nwhile True:\n    try: time.sleep(60)\n    except BaseException: print('no')"
    observation = plain.cell(code, timeout=0.2)
    assert (observation.timed_out, observation.kernel_died) == (True, True)
    assert observation.text.startswith("on\nno")
    assert "The time of 0.2 s was over. The cell ignored its interrupt for 2 s" in str(observation.notice)
    assert plain.cell("child").error == "NameError: name 'child' is not defined"


@pytest.mark.slow
@pytest.mark.parametrize("caught", ["KeyboardInterrupt", "(KeyboardInterrupt, Exception)"])
def test_cancelled_cell_that_catches_its_interrupts_ends_and_keeps_the_variables(kernel: Kernel, caught: str) -> None:
    kernel.say("kept = 'kept'")
    observation = cancelled(kernel, f"import time\nwhile True:\n    try: time.sleep(60)\n    except {caught}: pass")
    assert observation.error == "CellStopped: the cell caught KeyboardInterrupt and went on"
    assert kernel.say("kept").endswith(": 'kept'")


@pytest.mark.slow
def test_cancelled_cell_that_catches_everything_takes_the_kernel_with_it_before_the_kill(
    kernel: Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ohsandbox.tools.execute_ipython_cell.KILL_AFTER_S", 1000.0)
    observation = cancelled(kernel, "import time\nwhile True:\n    try: time.sleep(60)\n    except: pass")
    assert observation.kernel_died
    assert "The cell ignored its interrupts, so the kernel was ended. All variables are lost" in str(observation.notice)
    assert kernel.cell("1").error is None


def test_cancelled_cell_in_code_that_no_interrupt_reaches_keeps_the_variables(kernel: Kernel) -> None:
    kernel.say("kept = 'kept'; import ctypes")
    observation = cancelled(kernel, "ctypes.PyDLL(None).usleep(2_500_000)")  # with the GIL: no handler runs meanwhile
    assert not observation.kernel_died
    assert kernel.say("kept").endswith(": 'kept'")


def cancelled(kernel: Kernel, code: str) -> IPythonObservation:
    """Run the cell, and interrupt it until it ends, as a runtime does for `cancel`."""
    executor, over = kernel.tool.executor, threading.Event()
    assert executor is not None

    def insist() -> None:
        while not over.wait(0.1):
            executor.interrupt()

    thread = threading.Thread(target=insist)
    thread.start()
    try:
        return kernel.cell(code, timeout=60)
    finally:
        over.set()
        thread.join()


def test_interrupt_from_another_thread_ends_the_cell_only(kernel: Kernel) -> None:
    kernel.say("import time; kept = 1")
    executor = kernel.tool.executor
    assert executor is not None
    executor.interrupt()  # nothing runs: the next cell is not meant
    timer = threading.Timer(0.3, executor.interrupt)
    timer.start()
    observation = kernel.cell("time.sleep(60)")
    timer.join()
    assert observation.error == "KeyboardInterrupt"
    assert not observation.timed_out
    assert kernel.cell("kept").error is None


@pytest.mark.parametrize(
    "code",
    [
        "import sys\nfor _ in range(64): sys.stdout.write('x' * 1024 * 1024)",
        "!head -c 67108864 /dev/zero | tr '\\0' x",
    ],
)
def test_flood_is_cut_in_the_middle_and_its_size_is_stated(kernel: Kernel, code: str) -> None:
    text = text_of(kernel.cell(code))
    assert len(text) < 31_000
    assert f"[... {64 * 1024 * 1024 - 30_000} of {64 * 1024 * 1024} bytes left out here:" in text
    assert text.count("x") >= 30_000


def test_output_of_background_work_is_told_apart(plain: Kernel) -> None:
    plain.say("import subprocess\nchild = subprocess.Popen(['sh', '-c', 'sleep 0.2; echo from the background'])")
    until(lambda: plain.tool.executor._output._capture.size > 0)  # type: ignore[union-attr]
    assert plain.say("1").startswith("[Printed since the last cell]\nfrom the background\n[This cell]\nOut[")


def test_images_come_back_as_images_with_a_mark_in_the_text(kernel: Kernel) -> None:
    kernel.say("", reset=True)
    observation = kernel.cell(f"{PICTURE}display(Picture(), 'between')\nPicture()")
    assert observation.text == "[Image 1: image/png, 27 bytes]\n'between'\nOut[1]: [Image 2: image/png, 27 bytes]\n"
    [_, images] = observation.to_llm_content
    assert images == ImageContent(image_urls=(f"data:image/png;base64,{PNG}",) * 2)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("return b'no image at all'", "Picture object"),
        ("raise ValueError", "Picture object"),
        ("return b'\\x89PNG' + bytes(4_000_000)", "left out: 4000004 bytes, at most 3750000 are shown"),
        ("return b'\\x89PNG but not to its end'", "1 image(s) left out: the data is not of the type"),
    ],
)
def test_what_is_no_image_is_not_sent_as_one(plain: Kernel, body: str, said: str) -> None:
    observation = plain.cell(f"class Picture:\n    def _repr_png_(self): {body}\nPicture()")
    assert said in text_of(observation)
    assert observation.images == ()


def test_more_images_than_fit_are_counted(plain: Kernel) -> None:
    observation = plain.cell(f"{PICTURE}display(*[Picture() for _ in range(10)])")
    assert len(observation.images) == 8
    assert observation.text.splitlines()[-1] == "[Image 10 left out: at most 8 are shown of one cell]"


def test_open_figures_are_shown_at_the_end_of_the_cell_and_closed(plain: Kernel) -> None:
    """A stand-in for matplotlib, which takes longer to install than this file to run."""
    stand_in = f"""
class Figure:
    axes = [1]
    def savefig(self, file, **options):
        import base64
        file.write(base64.b64decode('{PNG}'))
open_figures = {{}}
def figure(number):
    return open_figures.setdefault(number, Figure())
def get_fignums():
    return list(open_figures)
def close(one):
    open_figures.clear()
def show():
    raise RuntimeError('Agg shows nothing')
"""
    runtime = plain.tool.executor._driver._runtime  # type: ignore[union-attr]
    runtime.write_bytes("matplotlib/__init__.py", b"")
    runtime.write_bytes("matplotlib/pyplot.py", stand_in.encode())
    plain.say("", reset=True)
    code = "import matplotlib.pyplot as plt\nplt.figure(1)\nplt.show()\nprint('shown')\nplt.figure(2);"
    observation = plain.cell(code)
    assert observation.text == "[Image 1: image/png, 27 bytes]\nshown\n[Image 2: image/png, 27 bytes]\n"
    assert plain.cell("plt.get_fignums()").images == ()


def test_reset_forgets_variables_and_runs_what_was_to_be_done_at_exit(kernel: Kernel) -> None:
    kernel.say("file = open('unfinished', 'w')\nn = file.write('kept')")
    assert "A new kernel was started: Python 3." in kernel.say("", reset=True)
    assert kernel.cell("n").error == "NameError: name 'n' is not defined"
    assert kernel.say("open('unfinished').read()").endswith(": 'kept'")


@pytest.mark.parametrize("magic", ["%timeit 1", "%%bash\nls", "x = %who", "for i in []:\n    %time i"])
def test_magic_of_ipython_is_refused_clearly_where_that_is_missing(plain: Kernel, magic: str) -> None:
    said = plain.say(f"{magic}\nprint('ran')")
    assert "needs IPython, which is not installed here; nothing of the cell ran" in said
    assert "\nran" not in said


def test_cd_stays_and_a_failed_command_says_its_code(kernel: Kernel) -> None:
    assert kernel.say("%cd /") == "/"
    assert kernel.say("!pwd; exit 3") == "/\n[Exit code 3]"
    kernel.say("", reset=True)


def test_pip_installs_for_the_kernel_that_runs(kernels: Callable[[str], Kernel], plain: Kernel, tmp_path: Path) -> None:
    wheel = tmp_path / "greeting-1.0-py3-none-any.whl"
    info = "greeting-1.0.dist-info"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("greeting.py", "words = 'hello'")
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: greeting\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    assert "has no pip. Install it first" in plain.say(f"%pip install {wheel}")
    kernel = kernels("ipython")
    assert kernel.cell("import greeting").error == "ModuleNotFoundError: No module named 'greeting'"
    assert "Successfully installed greeting-1.0" in kernel.say(f"%pip install --no-index {wheel}")
    assert kernel.say("import greeting\ngreeting.words").endswith(": 'hello'")


def test_cell_may_fork_and_close_its_streams(kernel: Kernel) -> None:
    kernel.say("import os\npid = os.fork()\nif pid: os.waitpid(pid, 0);")
    kernel.say("import sys\nos.close(1); sys.stdout.close()")
    assert kernel.say("print('still here')") == "still here"


@pytest.mark.slow
@pytest.mark.parametrize("code", ["a\0b", "(" * 5000, "1+" * 100_000 + "1", "\x1b]7117;00;end\x07"])
def test_code_that_is_no_code_does_no_harm(kernel: Kernel, code: str) -> None:
    assert kernel.cell(code).error is not None
    assert kernel.say("print('still here')") == "still here"


def test_values_too_odd_to_show_are_errors_of_the_cell(plain: Kernel) -> None:
    assert plain.cell("class R:\n    def __repr__(self): return 5\nR()").error is not None
    assert plain.cell("class E(Exception):\n    def __str__(self): 1 / 0\nraise E").error is not None
    assert plain.say("type('M', (), {'__getattr__': lambda s, n: 5})()").startswith("Out[")


@pytest.mark.docker
def test_image_without_python_is_told_clearly(started: Callable[[str], Runtime]) -> None:
    with pytest.raises(ToolError, match="This sandbox has no 'python3', which this tool needs"):
        Kernel(started("busybox")).cell("1")


@pytest.mark.docker
def test_kernel_of_a_sandbox_that_was_killed_is_told_as_lost_with_it() -> None:
    import docker  # noqa: PLC0415 - slow to import, and not every run needs it

    from ohsandbox import DockerRuntime  # noqa: PLC0415 - as above

    client = docker.from_env()
    with DockerRuntime("ohsandbox-base:debian") as runtime:
        kernel = Kernel(runtime)
        kernel.say("'started'")
        timer = threading.Timer(0.5, lambda: client.containers.get(runtime.id).kill())
        timer.start()
        observation = kernel.cell("print('before')\nimport time\ntime.sleep(60)")
        timer.join()
        assert "was lost: the sandbox had ended. It was started again" in str(observation.notice)
        assert observation.text == "before\n"
        assert kernel.say("'again'") == "Out[1]: 'again'"
        client.containers.get(runtime.id).remove(force=True)
        with pytest.raises(SandboxUnavailable):
            kernel.cell("1")
        kernel.tool.close()
    client.close()


def test_close_ends_the_cell_that_runs(plain: Kernel) -> None:
    kernel = Kernel(plain.tool.executor._driver._runtime)  # type: ignore[union-attr]
    kernel.say("import time")
    timer = threading.Timer(0.3, kernel.tool.close)
    timer.start()
    assert kernel.cell("time.sleep(60)").kernel_died
    timer.join()


def test_tool_starts_nothing_before_its_first_cell(tmp_path: Path) -> None:
    runtime = CLIRuntime(tmp_path, bubblewrap=False, quiet=True)  # not started: any question to it would fail
    tool = Kernel(runtime).tool
    assert tool.executor is not None
    tool.executor.interrupt()
    tool.close()
    tool.close()
    with pytest.raises(UsageError, match="has no runtime"):
        make_execute_ipython_cell_tool(conv_state=ConversationState(conversation_id="c"))


@pytest.mark.parametrize("timeout", [0, -1, 3601, "NaN", "soon"])
def test_timeout_must_be_seconds_in_reach(plain: Kernel, timeout: object) -> None:
    with pytest.raises(ToolArgumentsError, match="argument 'timeout'"):
        plain.cell("1", timeout=timeout)
