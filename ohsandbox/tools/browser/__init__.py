"""`browser`: a Chromium in the sandbox, controlled by calls such as `click('e12')`."""

from ohsandbox.tools.browser.definition import BrowseInteractiveAction, BrowserObservation, BrowserTool

__all__ = ["BrowseInteractiveAction", "BrowserObservation", "BrowserTool"]
