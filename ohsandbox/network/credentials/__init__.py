"""Credentials that stay on the host: TLS to their hosts ends in this process, which adds the header."""
