from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import pytest

from ohsandbox.errors import ToolError, UsageError
from ohsandbox.tools.driver import NO_PROGRAM, Driver, ProgramDied, RequestTimedOut

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ohsandbox.runtime.base import Runtime

PROGRAM = """
import os, subprocess, sys, threading, time
ANSWERS = 4  # the descriptor of the protocol: requests come through 3
def main(ready, receive, send):
    ready({"workdir": os.getcwd(), "input": sys.stdin.read()})
    while (request := receive()) is not None:
        print("noise of the program", flush=True)
        try:
            send({"value": eval(request["do"])})
        except KeyboardInterrupt:
            send({"value": "interrupted"})
"""


@pytest.fixture
def driver(roomy: Runtime) -> Iterator[Driver]:
    driver = Driver(roomy, PROGRAM)
    yield driver
    driver.close()


def ask(driver: Driver, do: str, timeout_s: float = 20) -> object:
    return driver.request({"do": do}, timeout_s)["value"]


def lives(runtime: Runtime, pid: object) -> bool:
    """Whether there is such a process; a zombie is none."""
    state = runtime.run(["sed", "s/.*) //", f"/proc/{pid}/stat"]).stdout[:1]
    return state not in (b"", b"Z", b"X")


def test_program_starts_with_the_first_request_and_stays(roomy: Runtime, driver: Driver) -> None:
    assert driver.facts == {}
    pid = ask(driver, "os.getpid()")
    assert ask(driver, "os.getpid()") == pid
    assert driver.facts["pid"] == pid
    assert driver.facts["workdir"] == roomy.workdir


def test_what_the_program_prints_and_reads_is_not_the_protocol(driver: Driver) -> None:
    assert ask(driver, "os.system('echo from a child; cat')") == 0
    assert driver.facts["input"] == ""


@pytest.mark.parametrize("text", ["", "\udcff\0\r\n\x1b ü", "x" * 3_000_000])
def test_any_text_comes_and_goes_unchanged(driver: Driver, text: str) -> None:
    assert driver.request({"do": "request['text']", "text": text}, 20) == {"value": text}


def test_standard_error_is_heard_while_nobody_asks(roomy: Runtime) -> None:
    heard = bytearray()
    driver = Driver(roomy, PROGRAM, on_stderr=heard.extend)
    ask(driver, "threading.Timer(0.1, lambda: os.write(2, b'e' * 1_000_000)).start()")
    deadline = time.monotonic() + 60
    while heard.count(b"e"[0]) < 1_000_000 and time.monotonic() < deadline:
        time.sleep(0.02)
    driver.close()
    assert heard.count(b"e" * 1_000_000) == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("end", "words", "status"),
    [
        ("os.write(2, b'last words\\n') and os._exit(7)", "ended with exit code 7. It said: last words", 7),
        ("os.kill(os.getpid(), 11)", "was killed by signal 11", 139),
        ("subprocess.Popen(['sleep', '1000']) and os._exit(3)", "ended with exit code 3", 3),
        ("os.write(ANSWERS, b'\\0\\0\\0\\x04null')", "sent something that is not an answer and was killed", None),
        ("os.write(ANSWERS, b'\\xff' * 8)", "over the limit of 67108864, and was killed", None),
    ],
)
def test_death_is_told_with_its_reason_and_the_next_request_starts_anew(
    roomy: Runtime, end: str, words: str, status: int | None
) -> None:
    driver = Driver(roomy, PROGRAM)
    before = ask(driver, "os.getpid()")
    with pytest.raises(ProgramDied) as died:
        ask(driver, end)
    assert words in str(died.value)
    assert died.value.status == status
    assert driver.start() is None  # it was told
    assert ask(driver, "os.getpid()") != before
    driver.close()


def test_death_between_two_requests_is_told_once(driver: Driver) -> None:
    pid = ask(driver, "os.getpid()")
    ask(driver, "threading.Timer(0.05, os._exit, [5]).start()")
    deadline = time.monotonic() + 60
    while driver.facts and time.monotonic() < deadline:
        time.sleep(0.02)
    death = driver.start()
    assert death is not None
    assert death.status == 5
    assert driver.start() is None
    assert ask(driver, "os.getpid()") != pid


def test_late_answer_can_be_waited_for_and_is_never_taken_for_the_next_one(driver: Driver) -> None:
    for late in ("'first'", "'second'"):
        with pytest.raises(RequestTimedOut, match=r"no answer within 0.2 s"):
            ask(driver, f"time.sleep(0.5) or {late}", timeout_s=0.2)
        if late == "'first'":
            assert driver.await_answer(20) == {"value": "first"}
    assert ask(driver, "'third'") == "third"


@pytest.mark.parametrize("group", [False, True])
def test_interrupt_ends_what_the_program_does_and_not_the_program(driver: Driver, *, group: bool) -> None:
    pid = ask(driver, "os.getpid()")
    assert driver.interrupt(group=group) is False  # nothing is being answered
    timer = threading.Timer(0.2, driver.interrupt, kwargs={"group": group})
    timer.start()
    assert ask(driver, "time.sleep(60)") == "interrupted"
    assert ask(driver, "os.getpid()") == pid
    timer.join()


def test_stop_ends_the_program_and_all_its_children(roomy: Runtime, driver: Driver) -> None:
    child = ask(driver, "subprocess.Popen(['sleep', '1000'], start_new_session=True).pid")
    program = ask(driver, "os.getpid()")
    assert lives(roomy, child)
    driver.stop()
    assert not lives(roomy, child)
    assert not lives(roomy, program)
    assert ask(driver, "1") == 1


def test_stop_from_another_thread_ends_the_wait(driver: Driver) -> None:
    driver.start()
    timer = threading.Timer(0.2, driver.stop)
    timer.start()
    with pytest.raises(ProgramDied, match="was stopped"):
        ask(driver, "time.sleep(60)")
    timer.join()


def test_closed_driver_takes_no_more_requests(driver: Driver) -> None:
    ask(driver, "1")
    driver.close()
    driver.close()
    with pytest.raises(UsageError, match="was closed"):
        ask(driver, "1")


@pytest.mark.parametrize("grace_s", [0.0, 20.0])
def test_idle_program_may_end_by_itself_within_its_grace(roomy: Runtime, *, grace_s: float) -> None:
    file = f"{roomy.workdir.rstrip('/')}/ended-{grace_s:g}"
    driver = Driver(roomy, f"{PROGRAM}    open({file!r}, 'w').close()\n")
    child = ask(driver, "subprocess.Popen(['sleep', '1000'], start_new_session=True).pid")
    driver.stop(grace_s=grace_s)
    assert not lives(roomy, child)
    assert roomy.run(["test", "-e", file]).exit_code == (0 if grace_s else 1)


def test_busy_program_has_no_grace(driver: Driver) -> None:
    with pytest.raises(RequestTimedOut):
        ask(driver, "time.sleep(1000)", timeout_s=0.2)
    began = time.monotonic()
    driver.stop(grace_s=1000)
    assert time.monotonic() - began < 100


def test_missing_interpreter_is_told_as_such(sandbox: Runtime) -> None:
    driver = Driver(sandbox, PROGRAM, interpreters=["no-such-program", "/nor/this"], name="The gadget")
    with pytest.raises(ProgramDied, match=r"The gadget ended with exit code 127. It said: .*not found") as died:
        driver.request({}, 20)
    assert died.value.status == NO_PROGRAM


def test_first_interpreter_that_is_there_runs_the_program(roomy: Runtime) -> None:
    driver = Driver(roomy, PROGRAM, interpreters=["no-such-program", "python3"])
    assert ask(driver, "1") == 1
    driver.close()


def test_answer_that_comes_before_the_request_is_none(roomy: Runtime) -> None:
    source = """
import os, time
def main(ready, receive, send):
    frames = (b'[0, {"pid": 0}]', b'[1, {"done": true}]')
    os.write(4, b"".join(len(frame).to_bytes(4, "big") + frame for frame in frames))
    time.sleep(1000)
"""
    driver = Driver(roomy, source)
    with pytest.raises(RequestTimedOut):
        driver.request({}, 0.3)
    assert driver.facts == {"pid": 0}
    assert driver.interrupt() is False  # 0 would be everybody
    driver.close()


def test_files_of_the_working_directory_are_not_imported_in_place_of_the_standard_library(roomy: Runtime) -> None:
    roomy.write_bytes("json.py", b"raise SystemExit('shadowed')")
    driver = Driver(roomy, PROGRAM)
    assert ask(driver, "os.path.exists('json.py')") is True
    driver.close()
    roomy.run(["rm", "json.py"])


def test_environment_is_passed_on(roomy: Runtime) -> None:
    driver = Driver(roomy, PROGRAM, env={"GREETING": "a 'b' $c"})
    assert ask(driver, "os.environ['GREETING']") == "a 'b' $c"
    driver.close()


def test_oversized_request_is_refused_before_it_is_sent(driver: Driver) -> None:
    pid = ask(driver, "os.getpid()")
    with pytest.raises(ToolError, match="at most 67108864 can be sent"):
        ask(driver, "x" * (64 * 1024 * 1024))
    assert ask(driver, "os.getpid()") == pid
