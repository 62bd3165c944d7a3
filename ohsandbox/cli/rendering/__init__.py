"""How events, text and tables look in a terminal, in plain lines and in an exported file."""
