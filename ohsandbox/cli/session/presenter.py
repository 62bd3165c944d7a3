"""A conversation at work before a person's eyes: what happens is shown, Ctrl-C stops it."""

from __future__ import annotations

import queue
import time
from typing import TYPE_CHECKING

from ohsandbox.cli.rendering.events import call_of
from ohsandbox.cli.rendering.text import cut
from ohsandbox.cli.rendering.view import IMAGES_NAME, MAX_STATUS_CHARS, MODEL_WORKS
from ohsandbox.cli.sandbox.network_words import BlockedHosts
from ohsandbox.conversation.run.limits import Spending
from ohsandbox.events import EXIT, ConversationStatus, SDKEvent
from ohsandbox.persistence import LOG_NAME
from ohsandbox.review_text import on_one_line
from ohsandbox.text import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from ohsandbox.cli.rendering.view import View
    from ohsandbox.cli.sandbox.ports import PortWatch
    from ohsandbox.conversation import Conversation
    from ohsandbox.conversation.live_output import OutputEvent
    from ohsandbox.llm.chat import LLMEvent
    from ohsandbox.network.audit import NetworkDecision
    from ohsandbox.runtime.base import Runtime

TICK_S = 0.1
"""How often a spinner turns."""
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
            conversation: not started yet, or not running.
            view: shows it.
            echo: shows the person's own messages as well.
            answer: asks the person about calls that wait; says whether the run goes on. None leaves them waiting.
        """
        self.conversation = conversation
        self.view = view
        view.images_dir = conversation.directory / IMAGES_NAME
        self.hurried = False
        """A second Ctrl-C came while the run was being stopped: leave without waiting."""
        self.has_worked = conversation.resume_state.has_worked
        """Something was called in the sandbox."""
        self._echo = echo
        self._answer = answer
        self._spending = Spending()
        self._responses: set[str] = set()
        self._asked_s = 0.0
        """Of the run, while a person was asked."""
        self._calls: dict[str, SDKEvent] = {}
        """Tool calls without a result, which run, or wait for the person's word."""
        self._events: queue.SimpleQueue[SDKEvent | LLMEvent] = queue.SimpleQueue()
        """What happened, in its order: pieces of an answer stand before the event that holds it."""
        conversation.register_callback(self._events.put)
        if view.wants_stream:
            conversation.register_stream(self._events.put)
        self._statuses: queue.SimpleQueue[str] = queue.SimpleQueue()
        conversation.register_status(self._statuses.put)
        self._decisions: queue.SimpleQueue[NetworkDecision] = queue.SimpleQueue()
        self._blocked = BlockedHosts(command=f"ohsandbox run --resume {conversation.id} --allow")
        self._outputs: dict[str, OutputEvent] = {}
        """Of each call that runs the newest: what was not shown in time is outdated."""
        conversation.register_output(lambda event: self._outputs.update({event.tool_call_id: event}))
        self.port_watch: PortWatch | None = None
        """Is told when a call begins and ends."""
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        """Lines of ours from other threads, to be shown between two events."""

    def run(self, text: str, images: Sequence[str] = ()) -> ConversationStatus:
        """Say text and show what comes of it until the run has ended. Ctrl-C stops the run, without an error.

        Raises:
            KeyboardInterrupt: a second Ctrl-C, while the run was being stopped.
        """
        return self._shown(lambda: self.conversation.send_message(text, images))

    def tell(self, line: str) -> None:
        """Show a line of ours on what happens beside the conversation, from any thread; between runs, with the next."""
        self._lines.put(line)

    @property
    def has_begun(self) -> bool:
        """Something was said in the conversation, so that there is something to look at."""
        log = self.conversation.directory / LOG_NAME
        return log.exists() and log.stat().st_size > 0

    def hear_network(self, runtime: Runtime, *, has_commands: bool) -> Callable[[], object]:
        """Tell what the sandbox's network refuses; returns what ends that. has_commands: a person can say `/net`."""
        if has_commands:
            self._blocked = BlockedHosts(command="/net allow")
        listen: Callable[[Callable[[NetworkDecision], object]], Callable[[], object]] | None
        listen = getattr(runtime, "on_network_decision", None)
        return (lambda: None) if listen is None else listen(self._decisions.put)

    def tell_network(self) -> None:
        """Show what was decided on requests since the last time."""
        while not self._decisions.empty():
            self._show_decision(self._decisions.get())

    def _show_decision(self, decision: NetworkDecision) -> None:
        self.view.network(decision)
        if (line := self._blocked.add(decision)) is not None:
            self.view.warn(line)

    def compact(self) -> ConversationStatus:
        """Have the conversation condensed, as `run` has a message answered."""
        return self._shown(self.conversation.compact, word="Compacted")

    def leave(self) -> None:
        """Finish a conversation that answered or was stopped; what waits for confirmation, or failed, stays so."""
        if self.has_begun and self.conversation.status() in {ConversationStatus.IDLE, ConversationStatus.CANCELED}:
            self.run(EXIT)

    def go_on(self) -> ConversationStatus:
        """Act on answers that were stored, or do what was cut off, as `run` does; else there is nothing to show."""
        return self._shown(lambda: self.conversation.go_on() or self.conversation.resume())

    def tell_where(self) -> None:
        """Say how to look at the conversation, and how to go on with it."""
        if self.has_begun:
            self.view.info(f"To look at it: ohsandbox conversations show {self.conversation.id}")
            self.view.info(f"To go on:      ohsandbox run --resume {self.conversation.id}")

    def close(self) -> None:
        """Close the conversation; after a second Ctrl-C its thread is left to end with the process."""
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
        self.tell_network()
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
        """The call that runs, or that the model works."""
        running = next(iter(self._calls.values()), None)
        return MODEL_WORKS if running is None else cut(on_one_line(call_of(running).text), MAX_STATUS_CHARS)

    def _totals(self) -> Iterator[str]:
        """Duration without what a person thought about, steps (answers of the model), tokens and cost of the run."""
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
        """Show events until the one that ends the run; a log that failed has none, so the status is asked as well."""
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
                self.tell_network()
                self.view.tick()
                self._hear()
            else:
                return

    def _show_lines(self) -> None:
        while not self._lines.empty():
            self.view.info(self._lines.get())

    def _hear(self) -> None:
        """Time passes while the agent works: a person may have something to say."""

    def _show(self, event: SDKEvent | LLMEvent) -> bool:
        """Show it; True for the last one of a run."""
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
        if self.port_watch is not None and event.type in {"tool_call", "tool_result"}:
            self.port_watch.nudge()
        if self._echo or event.type != "user_message":
            self.view.show(event)
        return event.type == "status_update" and event.data["status"] != ConversationStatus.RUNNING.value
