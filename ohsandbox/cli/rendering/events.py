"""What a person sees of a conversation: `View`, and the words that its two forms share.

`tui.RichView` is for a terminal, `plain.PlainView` for logs. A view is only ever called from the main thread. Every
text that a model or a sandbox wrote passes through `safe`, `safe_line` or `words` before it is printed, which delete
nothing; what a program printed passes through `output` instead.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, NamedTuple

from ohsandbox.cli.rendering.text import output, safe, safe_line

if TYPE_CHECKING:
    from ohsandbox.events import SDKEvent

ALLOWED_BY = "Allowed by approval {}."
"""Of a call that a person would have been asked about."""

_OWN_LAST_LINE = re.compile(r"\[[^\n]*; working directory [^\n]*\]")
"""What `CommandObservation` appends for the model; a person is shown the exit code by us."""


class Call(NamedTuple):
    """A tool call for a person's eyes."""

    sign: str
    """One character: `$` a command, `>` input, `%` a Python cell, `+` a file written, `~` one changed, `<` one read,
    `?` a search, `@` a web page, `&` a sub-agent, `*` a thought, `.` anything else."""
    text: str
    """May have several lines."""
    answer: bool = False
    """The text is the agent's answer to the person."""


class Outcome(NamedTuple):
    """A tool result for a person's eyes."""

    text: str
    ending: str
    """`exit 1`, `still running`, `failed`; empty where there is nothing to say."""
    ok: bool


def call_of(event: SDKEvent) -> Call:
    """The `tool_call` event in a person's words, ready to be printed."""
    name, arguments = str(event.data.get("name", "")), _arguments(event.data)
    given = {key: safe(value) for key, value in arguments.items() if isinstance(value, str)}
    match name, given:
        case "execute_bash", {"command": command}:
            is_input = arguments.get("is_input") in (True, "true")
            call = Call(">" if is_input else "$", command or "(waiting on)")
        case "file_editor", {"command": command, "path": path}:
            call = _edit(command, path, given)
        case "file_write", {"path": path, "content": content}:
            call = Call("+", f"{path} ({_lines(content)})")
        case "think", {"thought": thought}:
            call = Call("*", thought)
        case "finish", {"message": message}:
            call = Call(".", message, answer=True)
        case "ask_human", {"question": question}:
            offered = arguments.get("options")
            options = [f"\n- {safe_line(one)}" for one in (offered if isinstance(offered, list) else ())]
            call = Call("?", question + "".join(options), answer=True)
        case name, _ if (one := _SIGN_AND_FIELD.get(name)) and one[1] in given:
            call = Call(one[0], given[one[1]])
        case _:
            shown = event.data.get("raw_arguments") or json.dumps(arguments, ensure_ascii=False)
            call = Call(".", f"{safe_line(name)} {safe(shown)}")
    return call


_SIGN_AND_FIELD = {
    "file_read": ("<", "path"),
    "glob": ("?", "pattern"),
    "grep": ("?", "pattern"),
    "execute_ipython_cell": ("%", "code"),
    "edit_file": ("~", "path"),
    "web_read": ("@", "url"),
    "browser": ("@", "code"),
    "delegate": ("&", "task"),
    "delegate_to_browsing_agent": ("&", "task"),
}
"""Of the calls that one argument tells all of."""


def _lines(text: str) -> str:
    count = len(text.splitlines())
    return "1 line" if count == 1 else f"{count} lines"


def _edit(command: str, path: str, given: dict[str, str]) -> Call:
    if command == "view":
        return Call("<", path)
    if command == "create":
        return Call("+", f"{path} ({_lines(given.get('file_text', ''))})")
    return Call("~", f"{path} ({command})")


def _arguments(data: dict[str, Any]) -> dict[str, Any]:
    try:
        found = json.loads(data.get("arguments") or "{}")
    except (ValueError, TypeError, RecursionError):  # a log that somebody else made
        return {}
    return found if isinstance(found, dict) else {}


def outcome_of(event: SDKEvent) -> Outcome:
    """The `tool_result` event in a person's words, ready to be printed."""
    result, details = event.data.get("result") or {}, event.data.get("details") or {}
    if result.get("status") == "error":
        return Outcome(safe(result.get("error") or ""), "failed", ok=False)
    text = str(result.get("output") or "")
    if "exit_code" not in details:
        return Outcome(output(text), "", ok=True)
    above, _, last = text.rpartition("\n")
    return Outcome(
        output(above if _OWN_LAST_LINE.fullmatch(last) else text), _ending(details), ok=details["exit_code"] == 0
    )


def _ending(details: dict[str, Any]) -> str:
    if details.get("waiting_for_input"):
        return "waits for input"
    if details.get("running"):
        return "still running"
    if details.get("timed_out"):
        return "stopped by its time limit"
    if details.get("cancelled"):
        return "cancelled"
    code = details.get("exit_code")
    return "exit unknown" if code is None else f"exit {int(code)}"
