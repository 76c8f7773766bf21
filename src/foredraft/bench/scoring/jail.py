"""The inside of the sandbox: gives up rights, then runs the program on standard input. Run by path, not imported.

It imports nothing of foredraft. Limits of the system (processor time, memory, file size, processes, a network
namespace without a network, an unprivileged user) come first; an audit hook refuses the rest: files to write, sockets,
processes, and libraries that would get around it. Against mistakes of a language model, not against an attacker.
"""

import ctypes
import importlib
import os
import resource
import sys

# Loaded while we may still read every folder, because programs use them.
USUAL = """abc array base64 bisect calendar cmath collections contextlib copy dataclasses datetime decimal enum
fractions functools hashlib heapq inspect io itertools json math numbers operator pprint queue random re statistics
string struct textwrap threading time traceback typing unicodedata"""
NEW_USER, NEW_NETWORK = 0x10000000, 0x40000000
NOBODY = 65534
REFUSED = ("socket.", "subprocess.", "ctypes.", "shutil.", "ftplib.", "urllib.", "http.", "smtplib.", "webbrowser.")
REFUSED_CALLS = {
    *(
        "os.system",
        "os.exec",
        "os.fork",
        "os.forkpty",
        "os.posix_spawn",
        "os.spawn",
        "os.kill",
        "os.killpg",
        "pty.spawn",
    ),
    *("os.remove", "os.rename", "os.rmdir", "os.mkdir", "os.link", "os.symlink", "os.truncate", "os.chmod", "os.chown"),
    *("os.putenv", "os.chdir", "signal.pthread_kill"),
}


def limit(seconds: int, megabytes: int) -> None:
    sizes = {
        resource.RLIMIT_CPU: seconds,
        resource.RLIMIT_AS: megabytes << 20,
        resource.RLIMIT_FSIZE: 0,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_NOFILE: 32,
    }
    for what, size in sizes.items():
        resource.setrlimit(what, (size, size))


def leave_network() -> None:
    """Move to a network namespace in which there is none, where the system lets us."""
    library = ctypes.CDLL(None, use_errno=True)
    if library.unshare(NEW_NETWORK) != 0:
        library.unshare(NEW_USER | NEW_NETWORK)


def become_nobody() -> None:
    if os.getuid() == 0:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)


def refuse(event: str, arguments: tuple[object, ...]) -> None:
    """The audit hook: Python calls it before it does something of note, and it cannot be taken off again."""
    if event.startswith(REFUSED) or event in REFUSED_CALLS:
        raise PermissionError(f"{event} is not allowed here")
    if event == "open":
        _, mode, flags = (*arguments, None, 0)[:3]
        writes = isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND)
        if writes or (isinstance(mode, str) and set(mode) & set("wax+")):
            raise PermissionError("files cannot be written here")


def main() -> None:
    token, seconds, megabytes = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    program = sys.stdin.buffer.read().decode()
    for name in USUAL.split():
        importlib.import_module(name)
    leave_network()
    become_nobody()
    limit(seconds, megabytes)
    say = os.dup(1)
    sys.argv = ["program"]
    sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    sys.addaudithook(refuse)
    exec(compile(program, "program", "exec"), {"__name__": "__main__"})  # a failed test ends us here
    os.write(say, token.encode())


main()
