"""Images: facts of those in the engine, pulling them, building them, and those that ohsandbox ships."""
