"""Credentials that stay on the host: TLS connections to their hosts end in this process, which adds the header."""
