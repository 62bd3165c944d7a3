"""The page of a conversation: `page` writes it as one file, `server` serves it while the agent works.

`entries` makes JSON of events through the table of all renderings; the page's script makes elements of that JSON, never
markup of text.
"""
