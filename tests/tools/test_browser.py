"""`browser`: what `code` may say, how a tree is shown, and real pages in Debian's Chromium."""

from __future__ import annotations

import base64
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ohsandbox.errors import ToolArgumentsError, ToolError, UsageError
from ohsandbox.schema import ImageContent
from ohsandbox.state import ConversationState
from ohsandbox.tools.browser import BrowserObservation, BrowserTool
from ohsandbox.tools.browser.definition import MAX_TREE_CHARS
from ohsandbox.tools.browser.functions import FUNCTIONS, parse_calls
from ohsandbox.tools.browser.tree import MAX_VALUE_CHARS, render_tree
from tests.fakes import RecordingRuntime

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ohsandbox.runtime.base import Runtime

PAGES = Path(__file__).parent / "browser_pages"

# --- code --------------------------------------------------------------------------------------


def test_code_is_calls_with_literal_arguments_one_a_line() -> None:
    calls = parse_calls("goto('localhost:8000')\n\n# why\nclick('[e5]', modifiers=('Shift',))\nscroll(-1.5, 20)\n")
    assert [(call.line, call.name, call.arguments) for call in calls] == [
        (1, "goto", {"url": "localhost:8000"}),
        (4, "click", {"bid": "e5", "button": "left", "modifiers": ["Shift"]}),
        (5, "scroll", {"delta_x": -1.5, "delta_y": 20}),
    ]


@pytest.mark.parametrize("code", ["```python\nnoop()\n```", "   noop()", "noop(1000); noop(1000)"])
def test_code_may_be_fenced_indented_or_on_one_line(code: str) -> None:
    assert {(call.name, call.arguments["wait_ms"]) for call in parse_calls(code)} == {("noop", 1000)}


@pytest.mark.parametrize(
    "code",
    [
        "import os",
        "__import__('os').system('id')",
        "page.goto('x')",
        "goto(open('/etc/passwd').read())",
        "goto(f'{1}')",
        "goto('a' + 'b')",
        "goto(*['x'])",
        "goto(**{'url': 'x'})",
        "x = goto('x')",
        "await goto('x')",
        "[goto('x') for _ in 'ab']",
        "goto('x') if True else noop()",
        "eval('1')",
        "goto(('x').__class__)",
        "noop(1000)(1)",
        "noop(\0)",
        "noop(" + "(" * 5000 + ")" * 5000 + ")",
        "noop(-" + "-" * 5000 + "1)",
        "noop(" + "9" * 5000 + ")",
        "noop(0x" + "f" * 5000 + ")",
        "scroll(0, -0x" + "f" * 5000 + ")",
        "tab_focus(1 + 0x" + "f" * 5000 + ")",
        "'goto'",
        "goto('unfinished",
    ],
)
def test_anything_else_is_refused_with_the_line_and_what_is_allowed(code: str) -> None:
    with pytest.raises(ToolArgumentsError, match=r"^Line \d+ of code ") as refused:
        parse_calls(f"noop()\n{code}")
    assert len(str(refused.value)) < 1000


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("goto()", "goto(url)"),
        ("goto('a', 'b')", "goto(url)"),
        ("goto('a', url='b')", "goto(url)"),
        ("click('e1', colour='red')", "click(bid"),
        ("goto(5)", "url of goto(url) must be a text, not 5"),
        ("click('a12')", "must be an id from the tree, such as 'e12' or 'f1e3', not 'a12'"),
        ("click('e1 >> body')", "must be an id"),
        ("click('e1', 'up')", "one of left, middle, right"),
        ("click('e1', modifiers='Shift')", "a list of Alt, Control"),
        ("noop(30001)", "0 to 30000 milliseconds"),
        ("noop(-1)", "0 to 30000 milliseconds"),
        ("noop(True)", "0 to 30000 milliseconds"),
        ("scroll(0, 1e999)", "a number"),
        ("select_option('e1', [])", "a text or a list of texts"),
        ("upload_file('e1', ['a', 1])", "a text or a list of texts"),
        ("fill('e1', '\\ud800')", "a text"),
        ("tab_focus(-1)", "a tab's number"),
        ("on_dialog('yes')", "True or False"),
    ],
)
def test_a_wrong_argument_is_told_with_what_would_do(code: str, said: str) -> None:
    with pytest.raises(ToolArgumentsError, match=re.escape(said)):
        parse_calls(code)


@pytest.mark.parametrize(("code", "said"), [("", "0 calls"), ("noop()\n" * 51, "51 calls"), (" " * 50001, "50001")])
def test_code_is_bounded(code: str, said: str) -> None:
    with pytest.raises(ToolArgumentsError, match=said):
        parse_calls(code)


def test_the_tool_names_all_its_functions_and_starts_nothing() -> None:
    runtime = RecordingRuntime()
    [tool] = BrowserTool.create(conv_state=ConversationState(conversation_id="c", runtime=runtime))
    assert tool.annotations is not None
    assert (tool.annotations.openWorldHint, tool.is_read_only) == (True, False)
    assert all(f"* {name}(" in tool.description for name in FUNCTIONS)
    assert len(tool.description) < 4096
    tool.close()
    assert (runtime.commands, runtime.calls) == ([], [])


def test_the_tool_needs_a_runtime() -> None:
    with pytest.raises(UsageError, match="has no runtime"):
        BrowserTool.create(conv_state=ConversationState(conversation_id="c"))


# --- trees -------------------------------------------------------------------------------------

SNAPSHOT = r"""
- generic [active] [ref=e1] [box=0,0,1280,3000]:
  - 'heading "Say: \"hi\" [ref=e99]" [level=1] [ref=e2] [box=0,0,1280,40]'
  - generic [ref=e3] [cursor=pointer] [box=0,50,100,20]: press me
  - generic [ref=e4] [box=0,100,1280,100]:
    - textbox "Name" [active] [ref=e5] [box=0,100,100,20]: "v: 1"
    - link "go" [ref=e6] [cursor=pointer] [box=0,130,100,20]:
      - /url: "#x"
    - text: "a - b: c"
  - iframe [ref=e7] [box=0,900,300,150]:
    - button "inside" [disabled] [ref=f1e2] [box=8,8,64,21]
""".strip()


def test_a_tree_is_a_line_an_element_with_its_id_in_brackets() -> None:
    tree, focused = render_tree(SNAPSHOT, limit_chars=5000)
    assert tree.split("\n") == [
        '[e2] heading "Say: "hi" [ref=e99]" (level=1)',
        "[e3] clickable: press me",
        '[e5] textbox "Name": v: 1 (focused)',
        '[e6] link "go" url=#x',
        "text: a - b: c",
        "[e7] iframe",
        '  [f1e2] button "inside" (disabled)',
    ]
    assert focused == 'textbox "Name": v: 1 (focused)'


def test_a_tree_that_is_too_long_keeps_what_is_in_view_and_then_what_can_be_operated() -> None:
    below = "\n".join(f"- paragraph [ref=e{n}] [box=0,{n},9,9]: {'x' * 100}" for n in range(1000, 1400))
    tree, _ = render_tree(f'{below}\n- button "far" [ref=e8] [box=0,5000,9,9]\n{SNAPSHOT}', limit_chars=400)
    assert '[e5] textbox "Name"' in tree
    assert '[e8] button "far"' in tree
    assert tree.count("paragraph") == 1
    assert len(tree) < 400 + 150
    assert tree.endswith(
        "[... 399 of 408 lines left out, those in view last; 0 of them can be operated. "
        "scroll(0, 600) shows the next part ...]"
    )


@pytest.mark.parametrize(
    "hostile",
    [
        '- button "a\\u001b]0;x\\u0007\\u202eb\\u0000" [ref=e1]',
        "- " * 5000,
        " " * 4000 + "- x",
        "- 'unfinished \x1b[2J",
        '- link "x" [ref=e1 onclick]',
        "- text: " + "\u200b" * 9000,
        "- /url: x",
        '- a "' + "\\" * 5000,
        "\n".join("  " * depth + "- a" for depth in range(3000)),
    ],
)
def test_hostile_trees_come_out_as_short_plain_lines(hostile: str) -> None:
    tree, _ = render_tree(hostile, limit_chars=2000)
    assert len(tree) < 2200
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f\u200b-\u200f\u202a-\u202e]", tree)


def test_an_elements_properties_end_where_a_text_of_it_would() -> None:
    tree, _ = render_tree("- button\n" + f"  - /{'n' * 90}: {'v' * 90}\n" * 1000, limit_chars=10**9)
    assert MAX_VALUE_CHARS <= len(tree) < 2 * MAX_VALUE_CHARS


def test_a_propertys_name_is_cleaned_as_its_value() -> None:
    tree, _ = render_tree("- button\n  - /\x1b]0;title\x07\u202ename: x", limit_chars=2000)
    assert tree == "button name=x"


# --- real pages --------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def place(image: str) -> Iterator[Runtime]:
    """A default sandbox of that image, which serves browser_pages at port 8000."""
    from ohsandbox import DockerRuntime  # noqa: PLC0415 - slow to import, and not every run needs it

    with DockerRuntime(image) as runtime:
        runtime.upload(PAGES, "/pages")
        runtime.execute("python3 /pages/server.py > /tmp/server.log 2>&1 & sleep 0.5")
        yield runtime


@pytest.fixture(scope="session")
def tool(place: Runtime) -> Iterator[BrowserTool]:
    [tool] = BrowserTool.create(conv_state=ConversationState(conversation_id="c", runtime=place))
    yield tool
    tool.close()


@pytest.fixture
def use(tool: BrowserTool) -> Iterator[Callable[..., str]]:
    """`use(code, failed=False)` is the answer's text; each test begins with one tab."""

    def run(code: str, *, failed: bool = False) -> str:
        seen: BrowserObservation = tool(tool.action_from_arguments({"code": code}))
        assert seen.is_error is failed, seen.text
        return seen.text

    yield run
    while "Tabs:" in run("tab_close()"):
        pass


def bid(text: str, element: str) -> str:
    """The id of the first line with element in it."""
    found = re.search(rf"\[((?:f\d+)?e\d+)\] [^\n]*{re.escape(element)}", text)
    assert found, f"no {element} in:\n{text}"
    return found[1]


def click(text: str, element: str) -> str:
    """The call that clicks it."""
    return f"click('{bid(text, element)}')"


SITE = "http://localhost:8000"
docker = [pytest.mark.docker, pytest.mark.timeout(600)]


class TestPages:
    pytestmark = docker

    def test_a_page_is_url_title_tree_and_screenshot(self, tool: BrowserTool) -> None:
        seen: Any = tool(tool.action_from_arguments({"code": f"goto('{SITE}/form.html')"}))
        assert seen.text.startswith(f"URL: {SITE}/form.html\nTitle: The form\n")
        assert re.search(r'\[e\d+\] textbox "Name"', seen.text)
        [image] = seen.to_llm_content[1:]
        assert isinstance(image, ImageContent)
        kind, _, data = image.image_urls[0].partition(",")
        png = base64.b64decode(data)
        assert (kind, png[16:24]) == ("data:image/png;base64", (1280).to_bytes(4, "big") + (720).to_bytes(4, "big"))

    def test_a_form_is_filled_in_and_sent_in_one_call(self, use: Callable[..., str]) -> None:
        page = use(f"goto('{SITE}/form.html')")
        name, colour, agree, send = (bid(page, x) for x in ('textbox "Name"', "combobox", "checkbox", 'button "Send"'))
        sent = use(
            f"fill('{name}', 'Ada \\'L\\'')\nselect_option('{colour}', 'Green')\nclick('{agree}')\nclick('{send}')"
        )
        assert "status: name=Ada 'L' colour=g agree=true" in sent

    def test_every_way_to_touch_an_element_reaches_the_page(self, use: Callable[..., str]) -> None:
        page = use(f"goto('{SITE}/form.html')")
        area, name = bid(page, "pad"), bid(page, 'textbox "Name"')
        assert "status: over" in use(f"hover('{area}')")
        assert "status: dblclick" in use(f"dblclick('{area}')")
        assert "status: right" in use(f"click('{area}', button='right', modifiers=['Shift'])")
        assert 'Focused: textbox "Name"' in use(f"focus('{name}')")
        assert "status: key A" in use(f"press('{name}', 'Shift+A')")
        assert 'textbox "Name": x' in use(f"fill('{name}', 'x')")
        assert re.search(r'textbox "Name"( \(focused\))?\n', use(f"clear('{name}')"))
        source, target = bid(page, "drag me"), bid(page, "drop here")
        assert "status: dropped" in use(f"drag_and_drop('{source}', '{target}')")

    def test_the_first_failing_call_stops_the_rest_and_is_named(self, use: Callable[..., str]) -> None:
        page = use(f"goto('{SITE}/form.html')")
        name = bid(page, 'textbox "Name"')
        seen = use(f"fill('{name}', 'one')\nclick('e9999')\nfill('{name}', 'two')", failed=True)
        assert "Error in line 2, click('e9999'): unknown element e9999" in seen
        assert "The 1 call(s) after it were not done." in seen
        assert 'textbox "Name": one' in seen

    def test_an_element_that_cannot_be_acted_on_is_told_why(self, use: Callable[..., str]) -> None:
        page = use(f"goto('{SITE}/form.html')")
        assert "not enabled" in use(click(page, "Never"), failed=True)
        colour = bid(page, "combobox")
        seen = use(f"select_option('{colour}', 'Pink')", failed=True)
        assert "the options are: Red, Green" in seen

    def test_files_of_the_sandbox_are_uploaded_to_fields_and_to_choosers(
        self, use: Callable[..., str], place: Runtime
    ) -> None:
        place.write_bytes("/workspace/a b.txt", b"12345")
        page = use(f"goto('{SITE}/form.html')")
        field, chooser = bid(page, 'button "File"'), bid(page, 'button "Choose"')
        assert "status: a b.txt 5" in use(f"upload_file('{field}', '/workspace/a b.txt')")
        assert "status: chosen a b.txt 5" in use(f"upload_file('{chooser}', 'a b.txt')")
        assert "/workspace/no does not exist" in use(f"upload_file('{field}', 'no')", failed=True)
        assert "use upload_file(bid, file)" in use(f"click('{chooser}')")

    def test_history_goes_back_and_forward_and_ends(self, use: Callable[..., str]) -> None:
        use("new_tab()")
        use(f"goto('{SITE}/form.html')\ngoto('{SITE}/frames.html')")
        assert "Title: The form" in use("go_back()")
        assert "Title: Frames" in use("go_forward()")
        assert "has no page after this one" in use("go_forward()", failed=True)

    def test_a_long_page_is_bounded_and_scrolled(self, use: Callable[..., str]) -> None:
        top = use(f"goto('{SITE}/long.html')")
        assert len(top) < MAX_TREE_CHARS + 1000
        assert re.search(r"\[\.\.\. \d+ of \d+ lines left out, those in view last; \d+ of them can be operated", top)
        assert "row 0." in top
        assert "In view: pixels 0 to 720 of" in top
        below = use("scroll(0, 50000)")
        assert "In view: pixels 50000 to 50720 of" in below
        assert "row 0." not in below

    @pytest.mark.parametrize("where", ["inner", "shadow"])
    def test_elements_of_frames_and_shadow_roots_are_clicked(self, use: Callable[..., str], where: str) -> None:
        page = use(f"goto('{SITE}/frames.html')")
        button = bid(page, f'button "{where}"')
        assert f"{where} was clicked" in use(f"click('{button}')")

    def test_a_link_that_opens_a_tab_shows_it_and_the_way_back(self, use: Callable[..., str]) -> None:
        page = use(f"goto('{SITE}/popup.html')")
        opened = use(click(page, "open a tab"))
        assert "Note: A new tab was opened and is shown: tab 1." in opened
        assert "Title: The form" in opened
        assert "0: Popups" in opened
        assert "Title: Popups" in use("tab_focus(0)")
        assert "unknown tab 7; open are 0 to 1" in use("tab_focus(7)", failed=True)
        closed = use("tab_focus(1)\ntab_close()")
        assert "Title: Popups" in closed
        assert "Tabs:" not in closed

    @pytest.mark.slow
    def test_a_page_cannot_open_tabs_without_end(self, use: Callable[..., str]) -> None:
        page = use(f"goto('{SITE}/popup.html')")
        flooded = use(click(page, "flood") + "\nnoop(500)")
        assert "more than 20 tabs" in flooded

    def test_dialogs_are_answered_and_told(self, use: Callable[..., str]) -> None:
        page = use(f"goto('{SITE}/dialog.html')")
        ask = bid(page, 'button "ask"')
        dismissed = use(f"click('{ask}')")
        assert "Note: The page showed a dialog (confirm), which was dismissed; on_dialog(True)" in dismissed
        assert "status: false" in dismissed
        assert "status: true" in use(f"on_dialog(True)\nclick('{ask}')")
        assert "status: Ada" in use("on_dialog(True, 'Ada')\n" + click(page, "prompt"))
        assert "dialog (alert), which was accepted: Hi there" in use(click(page, "tell"))

    def test_a_download_lands_in_the_sandbox_under_a_tame_name(self, use: Callable[..., str], place: Runtime) -> None:
        seen = use(f"goto('{SITE}/download')")
        found = re.search(r"Note: Downloaded: (/\S+) \(5 bytes\)\.", seen)
        assert found, seen
        assert place.read_bytes(found[1]) == b"hello"
        again = use(f"goto('{SITE}/download')")
        assert re.search(r"Downloaded: \S+/2-", again)

    @pytest.mark.slow
    def test_a_page_that_never_ends_is_shown_as_far_as_it_came(self, use: Callable[..., str]) -> None:
        seen = use(f"goto('{SITE}/slow')")
        assert "The page still loads after 10 s" in seen
        assert "the first half" in seen

    def test_errors_of_server_and_scripts_are_told(self, use: Callable[..., str]) -> None:
        assert "HTTP status 404" in use(f"goto('{SITE}/nowhere')")
        assert "ERR_CONNECTION_REFUSED, nothing listens there" in use("goto('localhost:8001')", failed=True)
        assert "Uncaught error in the page: " in (seen := use(f"goto('{SITE}/broken.html')"))
        assert "boom" in seen
        assert "Console error: told" in seen

    @pytest.mark.parametrize(
        ("name", "shown"), [("form.html", "Title: The form"), ("a.txt", "plain text"), ("", "form.html")]
    )
    def test_files_and_directories_of_the_sandbox_are_shown(
        self, use: Callable[..., str], name: str, shown: str
    ) -> None:
        assert shown in use(f"goto('/pages/{name}')")

    def test_a_pdf_is_drawn(self, tool: BrowserTool) -> None:
        seen: Any = tool(tool.action_from_arguments({"code": "goto('/pages/a.pdf')"}))
        blank: Any = tool(tool.action_from_arguments({"code": "goto('about:blank')"}))
        assert len(seen.images[0]) > len(blank.images[0]) + 3000

    def test_a_file_with_any_name_is_shown(self, use: Callable[..., str], place: Runtime) -> None:
        place.write_bytes("/tmp/a b#c?d%20'é.html", b"<title>odd name</title>")
        assert "Title: odd name" in use("""goto("/tmp/a b#c?d%20'é.html")""")

    def test_pages_are_run_by_a_user_who_may_not_read_what_is_the_agents(
        self, use: Callable[..., str], place: Runtime
    ) -> None:
        place.write_bytes("/root/key", b"secret", mode=0o600)
        assert "cannot be read by the browser, which runs as uid" in use("goto('/root/key')", failed=True)

    def test_text_of_a_page_cannot_forge_lines_of_the_answer(self, use: Callable[..., str]) -> None:
        seen = use(f"goto('{SITE}/hostile.html')")
        assert "\nURL: http://good.example" not in seen
        assert "\x1b" not in seen
        assert "\u202e" not in seen

    def test_a_page_that_tampers_with_its_own_functions_is_survived(self, use: Callable[..., str]) -> None:
        assert "paragraph: honest text" in use(f"goto('{SITE}/tamper.html')")
        assert "Title: The form" in use(f"goto('{SITE}/form.html')")

    @pytest.mark.slow
    def test_a_busy_page_is_told_and_left_by_goto(self, use: Callable[..., str]) -> None:
        page = use(f"goto('{SITE}/hang.html')")
        assert "The page does not answer" in use(click(page, "hang"), failed=True)
        assert "Title: The form" in use(f"goto('{SITE}/form.html')")

    def test_a_crashed_tab_is_told_and_replaced(self, use: Callable[..., str]) -> None:
        use("goto('about:blank')")
        assert "The tab crashed" in use("goto('chrome://crash')\nnoop(0)", failed=True)
        assert "Title: The form" in use(f"goto('{SITE}/form.html')")

    def test_a_killed_browser_comes_back_and_says_so(self, use: Callable[..., str], place: Runtime) -> None:
        use(f"goto('{SITE}/form.html')")
        place.run(["pkill", "-KILL", "chromium"])
        seen = use(f"goto('{SITE}/form.html')")
        assert "Note: Chromium had ended and was started again" in seen
        assert "Title: The form" in seen

    def test_a_killed_program_comes_back_and_says_so(
        self, use: Callable[..., str], tool: BrowserTool, place: Runtime
    ) -> None:
        use("noop(0)")
        place.run(["pkill", "-KILL", "-f", "^/opt/ohsandbox-browser/bin/python"])
        driver: Any = tool.executor._driver  # type: ignore[union-attr]
        while driver.facts:
            time.sleep(0.01)
        assert "Note: The browser's program was killed by signal 9." in use("noop(0)")


@pytest.mark.docker
def test_an_image_without_it_says_which_has_it(started: Callable[[str], Runtime]) -> None:
    for place in ("debian", "busybox"):
        [tool] = BrowserTool.create(conv_state=ConversationState(conversation_id="c", runtime=started(place)))
        with pytest.raises(ToolError, match=r"^The sandbox has no browser: .*docker build --tag ohsandbox-browser"):
            tool(tool.action_from_arguments({"code": "noop()"}))
        tool.close()
