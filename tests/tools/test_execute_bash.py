"""The contract of `execute_bash` as a model meets it: arguments in, text out, on every image."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest

from ohsandbox.content import DEFAULT_LIMITS
from ohsandbox.errors import ToolArgumentsError
from ohsandbox.schema import text_of
from ohsandbox.tools.execute_bash import make_execute_bash_tool

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ohsandbox.runtime.results import CommandObservation
    from ohsandbox.state import ConversationState

    Bash = Callable[..., CommandObservation]


@pytest.fixture
def options() -> dict[str, float]:
    """The tool's own; a test may parametrize it."""
    return {}


@pytest.fixture
def bash(
    state: ConversationState, request: pytest.FixtureRequest, folder: str, options: dict[str, float]
) -> Iterator[Bash]:
    """`bash(command, **arguments)` is one call of the tool, in a session of the test's own."""
    tool = make_execute_bash_tool(conv_state=state, session=request.node.name, **options)  # type: ignore[arg-type]

    def use(command: str, **arguments: Any) -> CommandObservation:
        return tool(tool.action_from_arguments({"command": command, **arguments}))

    use(f"cd '{folder}'")
    yield use
    state.require_runtime().close_session(request.node.name)


impatient = pytest.mark.parametrize("options", [{"idle_timeout": 0.5}])


@impatient
def test_command_survives_the_soft_timeout_and_is_polled_to_its_end(bash: Bash) -> None:
    first = bash("X=kept; sleep 2; echo finished | tee f; (exit 3)")
    assert first.running
    assert "poll with an empty command" in text_of(first)
    ended = bash("", timeout=20)
    assert ended.exit_code == 3
    assert ended.output == "finished\n"
    assert bash("cat f; echo $X").output == "finished\nkept\n"


@pytest.mark.parametrize("options", [{"timeout": 0.6}])
def test_a_chatty_command_is_left_running_and_only_a_timeout_stops_it(bash: Bash) -> None:
    first = bash("i=0; while [ $i -lt 8 ]; do echo $i; sleep 0.2; i=$((i+1)); done; exit 5")
    assert (first.running, first.timed_out) == (True, False)
    assert first.output.startswith("0\n1\n")
    assert "poll with an empty command" in text_of(first)
    printed = first.output
    while (told := bash("")).running:
        printed += told.output
    assert (told.exit_code, printed + told.output) == (5, "".join(f"{i}\n" for i in range(8)))
    assert bash("while :; do echo x; sleep 0.1; done", timeout=1).timed_out


def test_an_interrupt_ends_a_call_that_ignores_ctrl_c_and_keeps_the_shell(
    state: ConversationState, folder: str
) -> None:
    tool = make_execute_bash_tool(conv_state=state, session="interrupted")
    told: list[CommandObservation] = []

    def use(command: str) -> None:
        told.append(tool(tool.action_from_arguments({"command": command})))

    use(f"cd '{folder}'; A=kept")
    thread = threading.Thread(target=use, args=("sh -c 'trap \"\" INT TERM; : >begun; while :; do sleep 1; done'",))
    thread.start()
    while state.require_runtime().run(["test", "-e", f"{folder}/begun"]).exit_code:
        assert thread.is_alive()
    tool.interrupt()
    thread.join(60)
    assert (told[-1].cancelled, told[-1].timed_out) == (True, False)
    assert "[Cancelled" in text_of(told[-1])
    use("echo $A; pwd")
    assert told[-1].output == f"kept\n{folder}\n"
    state.require_runtime().close_session("interrupted")


@impatient
def test_nothing_new_starts_while_a_command_runs(bash: Bash, folder: str) -> None:
    bash("Y=1; sleep 60")
    refused = bash("echo lost; touch lost")
    assert refused.running
    assert "lost" not in refused.output
    interrupted = bash("C-c", is_input="true")
    assert interrupted.exit_code == 130
    after = bash("ls; echo $Y; pwd")
    assert after.output == f"1\n{folder}\n"


@impatient
def test_interrupt_without_is_input_interrupts(bash: Bash) -> None:
    bash("sleep 60")
    assert bash("C-c").exit_code == 130
    assert "nothing was typed" in text_of(bash("C-c"))


def test_hard_timeout_ends_the_command_and_keeps_the_shell(bash: Bash) -> None:
    cut = bash("cd /; Z=1; echo before; sleep 60; touch /never", timeout="0.5")
    assert cut.timed_out
    assert cut.output == "before\n"
    assert "Stopped by the timeout" in text_of(cut)
    assert bash("pwd; echo $Z; ls /never 2>/dev/null").output == "/\n1\n"


def test_parallel_calls_all_run_and_get_their_own_answers(bash: Bash) -> None:
    answers: dict[int, CommandObservation] = {}

    def use(number: int) -> None:
        answers[number] = bash(f"echo {number}; (exit {number})")

    threads = [threading.Thread(target=use, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert {number: (got.output, got.exit_code) for number, got in answers.items()} == {
        number: (f"{number}\n", number) for number in range(6)
    }


def test_program_that_asks_is_reported_and_answered(bash: Bash) -> None:
    asked = bash("printf 'Name? '; read name; echo Hello $name")
    assert asked.waiting_for_input
    assert "answer with is_input" in text_of(asked)
    answered = bash("Ada", is_input=True)
    assert answered.exit_code == 0
    assert "Hello Ada" in answered.output


def test_keys_are_pressed(bash: Bash) -> None:
    assert bash("cat").waiting_for_input
    assert bash("C-d", is_input="true").exit_code == 0
    assert bash("read line; echo [$line]").waiting_for_input
    assert "[]" in bash("ENTER", is_input="true").output
    assert bash("cat").waiting_for_input
    bash("C-z", is_input="true")
    assert bash("echo alive; kill %1").output.startswith("alive\n")


def test_background_job_outlives_its_call(bash: Bash) -> None:
    assert bash("(sleep 1; echo served) > server.log 2>&1 &").exit_code == 0
    assert bash("wait; cat server.log", timeout=20).output.endswith("served\n")


def test_reset_gives_a_new_shell_in_the_first_directory(bash: Bash, state: ConversationState) -> None:
    bash("cd /; X=1; sleep 60 &")
    fresh = bash("echo [$X]; pwd", reset=True)
    assert fresh.output == f"[]\n{state.require_runtime().workdir}\n"
    assert "was reset" in text_of(fresh)
    with pytest.raises(ToolArgumentsError, match="exclude each other"):
        bash("x", reset=True, is_input=True)


def test_a_reset_without_a_command_is_acknowledged(bash: Bash) -> None:
    bash("X=1")
    shown = text_of(bash("", reset=True))
    assert "The shell was reset" in shown
    assert "No command ran" in shown
    assert "unknown" not in shown + text_of(bash(""))
    assert bash("echo [$X]").output == "[]\n"


def test_long_output_loses_its_middle_and_says_how_much(bash: Bash) -> None:
    shown = text_of(bash("i=0; while [ $i -lt 9000 ]; do echo line $i; i=$((i+1)); done"))
    assert shown.startswith("line 0\n")
    assert "line 8999\n" in shown
    assert len(shown) < DEFAULT_LIMITS.max_chars + 1000
    assert "left out" in shown


@pytest.mark.parametrize(
    "arguments",
    [{"timeout": 0}, {"timeout": "soon"}, {"timeout": 4000}, {"is_input": "perhaps"}, {"timeout": float("nan")}],
    ids=str,
)
def test_wrong_arguments_are_named(arguments: dict[str, Any], state: ConversationState) -> None:
    tool = make_execute_bash_tool(conv_state=state)
    with pytest.raises(ToolArgumentsError, match=f"argument '{next(iter(arguments))}' in tool call execute_bash"):
        tool.action_from_arguments({"command": "x", **arguments})
