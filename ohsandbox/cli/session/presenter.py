"""Shows a conversation while it runs; Ctrl-C stops the run."""

from __future__ import annotations

import queue
import time
from typing import TYPE_CHECKING

from ohsandbox.cli.rendering.events import call_of
from ohsandbox.cli.rendering.text import joined_lines
from ohsandbox.cli.rendering.view import IMAGES_NAME, MAX_STATUS_CHARS, MODEL_WORKS
from ohsandbox.cli.sandbox.network_words import BlockedHosts
from ohsandbox.cli.sandbox.sandbox_ports import PortWatch
from ohsandbox.conversation.run.limits import Spending
from ohsandbox.events import EXIT, ConversationStatus, SDKEvent
from ohsandbox.persistence import LOG_NAME
from ohsandbox.text import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    from ohsandbox.cli.rendering.view import View
    from ohsandbox.conversation import Conversation
    from ohsandbox.conversation.live_output import OutputEvent
    from ohsandbox.llm.chat import LLMEvent
    from ohsandbox.network.audit import NetworkDecision
    from ohsandbox.runtime.base import Runtime

TICK_S = 0.1
"""Interval, in seconds, between two positions of a spinner."""
_WORDS = {
    ConversationStatus.FINISHED: "Finished",
    ConversationStatus.IDLE: "Answered",
    ConversationStatus.ERROR: "Failed",
    ConversationStatus.CANCELED: "Stopped",
    ConversationStatus.RUNNING: "Still running",
    ConversationStatus.WAITING_FOR_CONFIRMATION: "Waits for confirmation",
}


class Presenter:
    """Runs messages one at a time and shows each event in the main thread, where signals arrive."""

    def __init__(
        self, conversation: Conversation, view: View, *, echo: bool, answer: Callable[[Conversation], bool] | None
    ) -> None:
        """Listen to the conversation.

        Args:
            conversation: a conversation that is not running.
            view: shows the conversation.
            echo: shows the person's own messages as well.
            answer: asks about pending calls and returns whether the run goes on. None leaves them pending.
        """
        self.conversation = conversation
        self.view = view
        view.images_dir = conversation.directory / IMAGES_NAME
        self.hurried = False
        """True after a second Ctrl-C while the run was being stopped: leave without waiting."""
        self.has_worked = conversation.resume_state.has_worked
        """True if a call has run in the sandbox."""
        self._echo = echo
        self._answer = answer
        self._spending = Spending()
        self._responses: set[str] = set()
        self._asked_s = 0.0
        """Seconds of the run during which a person was asked."""
        self._calls: dict[str, SDKEvent] = {}
        """Tool calls without a result: running, or pending."""
        self._events: queue.SimpleQueue[SDKEvent | LLMEvent] = queue.SimpleQueue()
        """Events in order: pieces of an answer precede the event that holds it."""
        conversation.register_callback(self._events.put)
        if view.wants_stream:
            conversation.register_stream(self._events.put)
        self._statuses: queue.SimpleQueue[str] = queue.SimpleQueue()
        conversation.register_status(self._statuses.put)
        self._decisions: queue.SimpleQueue[NetworkDecision] = queue.SimpleQueue()
        self._blocked = BlockedHosts(command=f"ohsandbox run --resume {conversation.id} --allow")
        self._outputs: dict[str, OutputEvent] = {}
        """The newest output of each running call; older output is dropped."""
        conversation.register_output(lambda event: self._outputs.update({event.tool_call_id: event}))
        self._port_watch: PortWatch | None = None
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        """Lines of ours from other threads, shown between two events."""

    def run(self, text: str, images: Sequence[str] = ()) -> ConversationStatus:
        """Send text to the agent and show the run until it has ended. Ctrl-C stops the run, without an error.

        Raises:
            KeyboardInterrupt: a second Ctrl-C, while the run was being stopped.
        """
        return self._shown(lambda: self.conversation.send_message(text, images))

    def show_line(self, line: str) -> None:
        """Show a line of ours; callable from any thread. Between runs it is shown with the next one."""
        self._lines.put(line)

    @property
    def has_begun(self) -> bool:
        """True if the conversation has a message, so that there is something to show."""
        log = self.conversation.directory / LOG_NAME
        return log.exists() and log.stat().st_size > 0

    def watch_network(self, runtime: Runtime, *, has_commands: bool) -> Callable[[], object]:
        """Report hosts that the sandbox's network blocks; return a function to stop. has_commands: `/net` exists."""
        if has_commands:
            self._blocked = BlockedHosts(command="/net allow")
        listen: Callable[[Callable[[NetworkDecision], object]], Callable[[], object]] | None
        listen = getattr(runtime, "on_network_decision", None)
        return (lambda: None) if listen is None else listen(self._decisions.put)

    def watch_ports(self, runtime: Runtime, *, forwarded: Callable[[], Collection[int]]) -> Callable[[], None]:
        """Report ports on which programs of the sandbox begin to listen; return a function to stop.

        forwarded returns the sandbox's ports that are forwarded already.
        """
        self._port_watch = PortWatch(
            runtime, self.show_line, forwarded=forwarded,
            is_running=lambda: self.conversation.status() is ConversationStatus.RUNNING,
        )  # fmt: skip
        return self._port_watch.close

    def show_network(self) -> None:
        """Show the network decisions since the last call."""
        while not self._decisions.empty():
            self._show_decision(self._decisions.get())

    def _show_decision(self, decision: NetworkDecision) -> None:
        self.view.network(decision)
        if (line := self._blocked.add(decision)) is not None:
            self.view.warn(line)

    def compact(self) -> ConversationStatus:
        """Condense the conversation, and show it as `run` does."""
        return self._shown(self.conversation.compact, word="Compacted")

    def leave(self) -> None:
        """Finish a conversation that has answered or was stopped; one that is pending or failed keeps its status."""
        if self.has_begun and self.conversation.status() in {ConversationStatus.IDLE, ConversationStatus.CANCELED}:
            self.run(EXIT)

    def go_on(self) -> ConversationStatus:
        """Act on stored answers, or finish interrupted work, as `run` does; otherwise show nothing."""
        return self._shown(lambda: self.conversation.go_on() or self.conversation.resume())

    def show_where(self) -> None:
        """Print how to view the conversation and how to continue it."""
        if self.has_begun:
            self.view.info(f"To look at it: ohsandbox conversations show {self.conversation.id}")
            self.view.info(f"To go on:      ohsandbox run --resume {self.conversation.id}")

    def close(self) -> None:
        """Close the conversation; after a second Ctrl-C its thread ends with the process."""
        if not self.hurried:
            self.conversation.close()

    def _shown(self, begin: Callable[[], object], *, word: str = "") -> ConversationStatus:
        self._spending, self._responses, self._asked_s = Spending(), set(), 0.0
        self.view.status(MODEL_WORKS)
        has_begun = begin() is not False
        try:
            self._follow()
            while self._is_answered():
                self.view.status(self._activity())
                self._follow()
        except KeyboardInterrupt:
            self.hurried = True
            self.view.status("stopping; Ctrl-C again leaves at once")
            self.conversation.stop()
            self._follow()
            self.hurried = False
        self.view.status("")
        self._show_lines()
        self.show_network()
        for line in self._blocked.counts():
            self.view.warn(line)
        status = self.conversation.status()
        said = word if word and status is ConversationStatus.IDLE else _WORDS[status]
        if has_begun or self._responses:
            asked = self._responses or status is not ConversationStatus.FINISHED  # `/exit` asks nothing
            self.view.info(" · ".join([said, *(self._totals() if asked else ())]))
        self.view.result(self.conversation.id, self.conversation.wait())
        return status

    def _activity(self) -> str:
        """Return the running call, or that the model works."""
        running = next(iter(self._calls.values()), None)
        return MODEL_WORKS if running is None else joined_lines(call_of(running).text, limit_chars=MAX_STATUS_CHARS)

    def _totals(self) -> Iterator[str]:
        """Yield duration (without a person's time to answer), steps (answers of the model), tokens and cost."""
        spent, steps = self._spending, len(self._responses)
        yield f"{max(spent.elapsed_s - self._asked_s, 0.0):.1f} s"
        yield counted(steps, "step")
        if spent.tokens:
            yield counted(spent.tokens, "token")
        if spent.cost_usd:
            yield f"${spent.cost_usd:.4f}"

    def _is_answered(self) -> bool:
        self.view.status("")
        if self._answer is None or self.conversation.status() is not ConversationStatus.WAITING_FOR_CONFIRMATION:
            return False
        self.conversation.wait()  # the event that ends this run must not be taken for the end of the next
        while not self._events.empty():
            self._show(self._events.get())
        self.view.status("")
        asked = time.monotonic()
        try:
            return self._answer(self.conversation)
        finally:
            self._asked_s += time.monotonic() - asked

    def _follow(self) -> None:
        """Show events until the one that ends the run; a failed log has none, so the status is checked as well."""
        running = True
        while running:
            running = self.conversation.status() is ConversationStatus.RUNNING
            try:
                while not self._show(self._events.get(timeout=TICK_S)):
                    pass
            except queue.Empty:
                status = None  # a server that is downloaded, a call that tells its progress
                while not self._statuses.empty():
                    status = self._statuses.get()
                if status is not None:
                    self.view.status(status or self._activity())
                for call_id in [*self._outputs]:
                    self.view.output(self._outputs.pop(call_id))
                self._show_lines()
                self.show_network()
                self.view.tick()
                self._read_input()
            else:
                return

    def _show_lines(self) -> None:
        while not self._lines.empty():
            self.view.info(self._lines.get())

    def _read_input(self) -> None:
        """Let time pass while the agent works; subclasses read the person's input."""

    def _show(self, event: SDKEvent | LLMEvent) -> bool:
        """Show an event; return True for the last one of a run."""
        if not isinstance(event, SDKEvent):
            self.view.stream(event)
            return False
        self._spending.add(event)
        if response_id := event.data.get("response_id"):
            self._responses.add(response_id)
        if event.type == "tool_call":
            self.has_worked = True
            self._calls[str(event.data.get("tool_call_id"))] = event
        elif event.type == "tool_result":
            self._calls.pop(str(event.data.get("tool_call_id")), None)
        if self._port_watch is not None and event.type in {"tool_call", "tool_result"}:
            self._port_watch.nudge()
        if self._echo or event.type != "user_message":
            self.view.show(event)
        return event.type == "status_update" and event.data["status"] != ConversationStatus.RUNNING.value
