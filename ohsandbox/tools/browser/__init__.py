"""`browser`: a Chromium in the sandbox, controlled by calls such as `click('e12')`."""

from ohsandbox.tools.browser.definition import BUILT_IN, BrowseInteractiveAction, BrowserObservation, BrowserTool

__all__ = ["BUILT_IN", "BrowseInteractiveAction", "BrowserObservation", "BrowserTool"]
