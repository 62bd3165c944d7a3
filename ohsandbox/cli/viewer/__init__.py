"""The web page of a conversation: `page` writes it as one file, `server` serves it while the agent works.

`entries` turns events into JSON; the page's script builds elements from that JSON, never
markup from text.
"""
