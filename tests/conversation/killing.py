"""A scripted task that is killed at random moments and resumed: `python -m tests.conversation.killing DIR SEED COUNT`.

One process forks a child for each run, so that a run costs no imports. The model in it is careful: each of its commands
is sent once, under a number of its own that the command itself notes; after "outcome is unknown" it looks, and sends
what is missing under a new number. Prints one JSON line: {"kills": N, "cut_off": calls so met, "faults": [...]}.
"""

# ruff: noqa: T201 - it is a program
from __future__ import annotations

import json
import os
import random
import re
import signal
import sys
import time
import traceback
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ohsandbox.agent import Agent
from ohsandbox.agent.history import OUTCOME_UNKNOWN
from ohsandbox.conversation import Conversation
from ohsandbox.events import ConversationStatus, SDKEvent
from ohsandbox.persistence import read_events
from ohsandbox.runtime.docker import DockerRuntime
from ohsandbox.runtime.local import CLIRuntime
from tests.fakes import answer, call

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ohsandbox.llm import ChatResponse
    from ohsandbox.runtime.base import Runtime

STEPS = 4
"""Enough for a kill in the first, the last and in between: each costs seven programs in every run."""
ID = "c"
NAMES = ("head", "body", "tail")
"""What each step writes, a line each; between two of them a kill may fall."""


def command_of(step: int, missing: Sequence[str], number: str) -> str:
    """Notes its number, then appends the lines that are missing, slowly. Not to be run twice.

    The programs `echo` write a whole line or none. bash's own, met by the SIGHUP of its terminal, writes what it has:
    the words without the newline.
    """
    lines = "; ".join(f"/bin/echo {name}-{step} >>result; sleep 0.01" for name in missing)
    return f"/bin/echo {number} >>trace; [ -d done ] || mkdir done; {lines}; : >done/{step}"


LOOK = "cat result 2>/dev/null; ls done 2>/dev/null | sed 's/^/done /'"


class CarefulModel:
    """Needs no memory: what it sends next follows from the messages."""

    name = "careful"
    note = ""
    context_tokens = None

    def preload(self) -> None:
        """Nothing to load."""

    def cancel(self) -> None:
        """Nothing is ever under way."""

    def send(self, messages: Sequence[Any], *_: Any, **__: Any) -> ChatResponse:
        check_canonical(messages)
        sent = [call for message in messages for call in message.get("tool_calls") or ()]
        number = f"n{len(sent)}"
        if not sent:
            return self._work(0, NAMES, number)
        last = json.loads(sent[-1]["function"]["arguments"]).get("command", "")
        result = next(message for message in reversed(messages) if message["role"] == "tool")["content"]
        if OUTCOME_UNKNOWN in result:
            return answer("", call("execute_bash", {"command": LOOK}, call_id=number), id=number)
        step = max(int(found) for one in sent for found in re.findall(r"done/(\d+)", one["function"]["arguments"]))
        if last == LOOK:
            lines = json.loads(result)["output"].split("\n")
            missing = [name for name in NAMES if f"{name}-{step}" not in lines]
            if missing or f"done {step}" not in lines:
                return self._work(step, missing, number)
        if step + 1 < STEPS:
            return self._work(step + 1, NAMES, number)
        return answer("", call("finish", {"message": "done"}, call_id=number), id=number)

    def _work(self, step: int, missing: Sequence[str], number: str) -> ChatResponse:
        command = command_of(step, missing, number).replace("; ; ", "; ")
        return answer("", call("execute_bash", {"command": command}, call_id=number), id=number)


def check_canonical(messages: Sequence[Any]) -> None:
    """Every tool call is followed by exactly one result, before anybody else speaks."""
    due: list[str] = []
    for message in messages:
        if message["role"] == "tool":
            due.remove(message["tool_call_id"])
            continue
        assert not due, f"no result for {due}"
        due = [call["id"] for call in message.get("tool_calls") or ()]
    assert not due, f"no result for {due}"


def run_in_child(directory: Path, runtime: Runtime, acknowledged: int) -> int:
    """Fork; the child begins or resumes the conversation and tells each stored event; returns its pid."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        os.setsid()
        conversation = Conversation(Agent(CarefulModel(), ["execute_bash", "finish"]), runtime, directory / "talks",
                                    conversation_id=ID)  # fmt: skip
        conversation.register_callback(lambda event: tell(acknowledged, event))
        with conversation:
            if conversation.status() is not ConversationStatus.FINISHED and not conversation.resume():
                conversation.send_message("go")
            code = 0 if conversation.wait(60) == ConversationStatus.FINISHED else 3
            if code:
                print(repr(conversation.error), file=sys.stderr)
    except BaseException:  # noqa: BLE001 - the child's last frame
        traceback.print_exc()
    finally:
        os._exit(code)


def tell(descriptor: int, event: SDKEvent) -> None:
    os.write(descriptor, f"{event.seq} {event.type}\n".encode())


def trial(directory: Path, delays_s: Sequence[float], *, docker: bool) -> list[str]:
    """Kill after each of the delays, then let it end; what is wrong then."""
    work = directory / "work"
    work.mkdir(parents=True)
    reading, writing = os.pipe()
    code = None
    for delay_s in [*delays_s, None]:
        runtime: Runtime = DockerRuntime("ohsandbox-base:busybox", workspace=work, conversation=ID) if docker else (
            CLIRuntime(work, bubblewrap=False, quiet=True)
        )  # fmt: skip
        pid = run_in_child(directory, runtime, writing)
        if delay_s is not None:
            time.sleep(delay_s)
            os.kill(pid, signal.SIGKILL)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    os.close(writing)
    with os.fdopen(reading) as file:
        acknowledged = file.read().splitlines()
    return faults_of(directory, work, code, acknowledged)


def faults_of(directory: Path, work: Path, code: int | None, acknowledged: Sequence[str]) -> list[str]:
    faults = [] if code == 0 else [f"the last run ended with {code}"]
    stored = {f"{event.seq} {event.type}" for event in read_events(directory / "talks" / ID)}
    faults += [f"acknowledged and lost: {event}" for event in acknowledged if event not in stored]
    wanted = "".join(f"{name}-{step}\n" for step in range(STEPS) for name in NAMES)
    if (found := (work / "result").read_text()) != wanted:
        faults.append(f"result is {found!r}")
    if (made := sorted(path.name for path in (work / "done").iterdir())) != sorted(map(str, range(STEPS))):
        faults.append(f"done holds {made}")
    twice = [number for number, count in Counter((work / "trace").read_text().split()).items() if count > 1]
    return faults + [f"run twice: {number}" for number in twice]


def main(directory: Path, seed: int, count: int, *, docker: bool = False) -> int:
    chance = random.Random(seed)
    began = time.monotonic()
    faults = trial(directory / "undisturbed", [], docker=docker)
    length_s = time.monotonic() - began
    kills = looks = 0
    while kills < count and not faults:
        delays = [chance.uniform(0, length_s) for _ in range(min(chance.choice((1, 1, 1, 3)), count - kills))]
        kills += len(delays)
        faults = [f"{fault}; seed {seed}, kills after {delays}" for fault in
                  trial(directory / str(kills), delays, docker=docker)]  # fmt: skip
        looks += sum(
            LOOK in event.data.get("arguments", "") for event in read_events(directory / str(kills) / "talks" / ID)
        )
    report = {"kills": kills, "cut_off": looks, "faults": faults, "undisturbed_s": round(length_s, 2)}
    print(json.dumps(report))
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), docker=sys.argv[4:] == ["docker"]))
