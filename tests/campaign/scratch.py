"""A place of its own for the campaign: an ordinary user who can write there and nowhere else.

The fence is the kernel's (Landlock on Linux), so it holds for every program that is started within, whatever it does. A
process that cannot be fenced in, or is still the superuser, is refused. What lies beside the fence is looked at
afterwards all the same.
"""

from __future__ import annotations

import ctypes
import os
import pwd
import stat
import struct
import sys
import tempfile
from pathlib import Path

PROJECT = Path(__file__).parents[2]
NOBODY = "nobody"
CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446
"""Landlock's system calls: the same numbers on every architecture."""
RULES_BELOW_A_FOLDER, NO_NEW_PRIVILEGES = 1, 38
WRITE_FILE, REFER, TRUNCATE = 1 << 1, 1 << 13, 1 << 14
WRITES = WRITE_FILE | sum(1 << bit for bit in range(4, 13))
"""Writing to a file, removing and making files, folders, links, pipes, sockets and devices."""
DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/tty")
SKIPPED = {".git", ".venv", "__pycache__", "runs", ".pytest_cache", ".mypy_cache", ".ruff_cache", ".hypothesis"}


_fenced = False


class RefusedError(Exception):
    """The campaign cannot run here without danger to something else."""


class Place:
    """A folder with the fenced `inside`, and a canary outside of it that everyone may write to."""

    def __init__(self) -> None:
        self.base = Path(tempfile.mkdtemp(prefix="rotoscope-campaign-"))
        self.base.chmod(0o777)
        self.inside = self.base / "inside"
        self.inside.mkdir()
        self.canary = self.base / "canary.txt"
        self.canary.write_text("nobody writes here")
        self.canary.chmod(0o666)
        if os.geteuid() == 0:
            os.chown(self.inside, pwd.getpwnam(NOBODY).pw_uid, pwd.getpwnam(NOBODY).pw_gid)
        self._before = self._outside()

    def _outside(self) -> dict[str, tuple[int, int, int]]:
        """What lies beside the fence and in the project: size, time and kind of every file."""
        found = {}
        for top in (self.base, PROJECT):
            for folder, names, files in os.walk(top):
                names[:] = [n for n in names if n not in SKIPPED and Path(folder, n) != self.inside]
                for name in files:
                    about = os.lstat(file := os.path.join(folder, name))
                    found[file] = (about.st_size, about.st_mtime_ns, about.st_mode)
        return found

    def touched(self) -> list[str]:
        """Files outside that are not as they were."""
        now = self._outside()
        return sorted(name for name in self._before.keys() | now if self._before.get(name) != now.get(name))


def enter(place: Path, *, superuser: bool = False) -> None:
    """From now on this process, and all it starts, is an ordinary user who writes below this folder only.

    `superuser` leaves the user as it is, for tests where somebody runs them as the superuser.
    """
    if os.geteuid() == 0 and not superuser:
        _become_ordinary()
    os.environ |= {"HOME": str(place), "TMPDIR": str(place), "XDG_CACHE_HOME": str(place / "cache")}
    os.environ["PYTHONPATH"] = str(PROJECT)
    for name in [name for name in os.environ if name.startswith("ROTOSCOPE_")]:
        del os.environ[name]
    tempfile.tempdir = str(place)
    os.chdir(place)
    fence(place)
    _check(place, superuser=superuser)
    global _fenced
    _fenced = True


def require() -> None:
    """Refuse to go on in a process that is not fenced in: everything that tries a bad input asks this first."""
    if not _fenced:
        raise RefusedError(
            "nothing of the campaign runs outside its scratch folder: use python -m tests.campaign"
        )


def _check(place: Path, *, superuser: bool) -> None:
    """Refuse to go on where something outside could be written to."""
    if os.geteuid() == 0 and not superuser:
        raise RefusedError("the campaign does not run as the superuser")
    for outside in (place.parent / "canary.txt", PROJECT / "pyproject.toml", Path("/etc/passwd")):
        try:
            os.close(os.open(outside, os.O_WRONLY | os.O_APPEND))
        except PermissionError:
            continue
        raise RefusedError(f"the campaign could write to {outside}, so it does not run")


def _become_ordinary() -> None:
    """Be nobody, once it is certain that nobody can read what is needed."""
    user = pwd.getpwnam(NOBODY)
    import torch

    needed = [
        sys.executable,
        os.path.realpath(sys.executable),
        os.__file__,
        torch.__file__,
        PROJECT / "pyproject.toml",
    ]
    for file in map(Path, needed):
        for part in (file, *file.parents):
            asked = stat.S_IXOTH if part.is_dir() else stat.S_IROTH
            if not part.stat().st_mode & asked:
                raise RefusedError(
                    f"the campaign runs as the user {NOBODY}, who may not read {part}: run it as an ordinary user, or "
                    f"with an interpreter and a project that everyone may read (make campaign BIN=ENVIRONMENT/bin)"
                )
    os.setgroups([])
    os.setgid(user.pw_gid)
    os.setuid(user.pw_uid)


def can_be_ordinary() -> bool:
    """Whether a process that is the superuser's could go on as nobody."""
    child = os.fork()
    if child == 0:
        try:
            _become_ordinary()
            os._exit(0)
        except BaseException:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def fence(place: Path) -> None:
    """Ask the kernel to refuse this process, and all it starts, every write outside a folder."""
    libc = ctypes.CDLL(None, use_errno=True)
    version = (
        libc.syscall(CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(1))
        if sys.platform == "linux"
        else 0
    )
    if version < 3:
        raise RefusedError(
            "the campaign needs Landlock (Linux 6.2 or newer) to be sure that nothing outside is touched"
        )
    handled = WRITES | REFER | TRUNCATE
    about = struct.pack("Q", handled)
    rules = _asked(libc.syscall(CREATE_RULESET, about, ctypes.c_size_t(len(about)), ctypes.c_uint32(0)))
    allowed = [(place, handled), *((Path(device), WRITE_FILE | TRUNCATE) for device in DEVICES)]
    for path, rights in allowed:
        if path.exists():
            opened = os.open(path, os.O_PATH)
            rule = struct.pack("=Qi", rights, opened)
            _asked(libc.syscall(ADD_RULE, rules, RULES_BELOW_A_FOLDER, rule, ctypes.c_uint32(0)))
            os.close(opened)
    _asked(libc.prctl(NO_NEW_PRIVILEGES, 1, 0, 0, 0))
    _asked(libc.syscall(RESTRICT_SELF, rules, ctypes.c_uint32(0)))
    os.close(rules)


def _asked(answer: int) -> int:
    if answer < 0:
        problem = ctypes.get_errno()
        raise RefusedError(f"the campaign cannot be fenced in ({os.strerror(problem)})")
    return answer
