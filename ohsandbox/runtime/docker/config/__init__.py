"""The configuration of a container: the caller's options, checked, then resolved with the facts of image and engine."""
