"""The HTTP proxy of a sandbox: it parses requests strictly, asks the policy, checks the address, and copies bytes."""
