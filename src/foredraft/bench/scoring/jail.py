"""The inside of the sandbox: gives up rights, then runs the program on standard input. Run by path, not imported.

It imports nothing of foredraft. Limits of the system (processor time, memory, file size, a network namespace without a
network, an unprivileged user, a seccomp filter that lets no process or session begin) come first; an audit hook refuses
the rest: files to write, sockets, and libraries that would get around it. Against mistakes of a language model, not
against an attacker.
"""

import ctypes
import importlib
import os
import platform
import resource
import struct
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


# What the kernel calls them, by machine: its audit number, calls that are refused, and the one that also makes threads.
REFUSED_NUMBERS = {
    # execve, execveat, fork, vfork, setsid, setpgid, ptrace, socket
    "x86_64": (0xC000003E, (59, 322, 57, 58, 112, 109, 101, 41), 56),
    "aarch64": (0xC00000B7, (221, 281, 157, 154, 117, 198), 220),
}
CLONE3, CLONE_THREAD = 435, 0x10000
ALLOW, REFUSE, UNKNOWN = 0x7FFF0000, 0x00050001, 0x00050026  # EPERM; ENOSYS sends the C library to the older call
LOAD, EQUAL, AT_LEAST, ANY_BIT, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
NO_NEW_PRIVILEGES, SECCOMP, FILTER = 38, 22, 2


def forbid_processes() -> None:
    """No new processes, but threads; where there is no such filter, neither."""
    machine = REFUSED_NUMBERS.get(platform.machine())
    if machine is None or not _install(_program(*machine)):
        resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))


def _program(arch: int, refused: tuple[int, ...], clone: int) -> list[tuple[int, int, int, int]]:
    """(code, jump if true, jump if false, operand): a filter of system calls in the kernel's form."""
    lines = [(LOAD, 0, 0, 4), (EQUAL, 1, 0, arch), (RETURN, 0, 0, REFUSE), (LOAD, 0, 0, 0)]
    lines += [(AT_LEAST, 0, 1, 0x40000000), (RETURN, 0, 0, REFUSE)]  # x86's second set of numbers
    for number in refused:
        lines += [(EQUAL, 0, 1, number), (RETURN, 0, 0, REFUSE)]
    lines += [(EQUAL, 0, 1, CLONE3), (RETURN, 0, 0, UNKNOWN)]
    lines += [(EQUAL, 0, 3, clone), (LOAD, 0, 0, 16), (ANY_BIT, 1, 0, CLONE_THREAD), (RETURN, 0, 0, REFUSE)]
    return [*lines, (RETURN, 0, 0, ALLOW)]


def _install(program: list[tuple[int, int, int, int]]) -> bool:
    library = ctypes.CDLL(None, use_errno=True)
    code = ctypes.create_string_buffer(b"".join(struct.pack("<HBBI", *line) for line in program))
    header = ctypes.create_string_buffer(struct.pack("@HP", len(program), ctypes.addressof(code)))
    if library.prctl(NO_NEW_PRIVILEGES, 1, 0, 0, 0) != 0:
        return False
    return bool(library.prctl(SECCOMP, FILTER, ctypes.byref(header), 0, 0) == 0)


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
    forbid_processes()
    limit(seconds, megabytes)
    say = os.dup(1)
    sys.argv = ["program"]
    sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    sys.addaudithook(refuse)
    exec(compile(program, "program", "exec"), {"__name__": "__main__"})  # a failed test ends us here
    os.write(say, token.encode())


main()
