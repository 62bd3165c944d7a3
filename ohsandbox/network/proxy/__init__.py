"""The HTTP proxy of a sandbox: it reads a request strictly, asks the policy, vets the address, and copies bytes."""
