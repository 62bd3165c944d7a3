"""A machine over OpenSSH. It isolates nothing: the machine is the sandbox."""

from ohsandbox.runtime.ssh.runtime import SshRuntime

__all__ = ["SshRuntime"]
