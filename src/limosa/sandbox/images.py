"""Named images: read-only views of this machine's programs, with a digest of what is in them.

An image is declared, not downloaded: directories of the host bound read-only, a generated minimal
/etc, and, where Python belongs to it, the interpreter that runs Limosa, without its site-packages,
so that `python3` is the same program and the same library on every box. `bubblewrap.py` turns an
image into arguments. Leaves out: images from files or registries.
"""

import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import MappingProxyType

from limosa.base.errors import UserError

WORK_DIRECTORY = "/work"
PYTHON_LINKS = "/opt/bin"
SEARCH_PATH = "/usr/local/bin:/usr/bin:/bin"
HOST_DIRECTORIES = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
# Libraries outside the default directories are found only through the loader's cache, and Debian
# reaches awk and others through /etc/alternatives.
HOST_ETC = (Path("/etc/ld.so.cache"), Path("/etc/alternatives"))
ETC_FILES: Mapping[str, str] = MappingProxyType(
    {
        "passwd": f"agent:x:1000:1000:agent:{WORK_DIRECTORY}:/bin/bash\n",
        "group": "agent:x:1000:\n",
        "hostname": "box\n",
        "hosts": "127.0.0.1 localhost box\n",
        "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
    }
)


@dataclass(frozen=True, slots=True)
class Image:
    """A declaration: the tools that must be there and the variables that a process starts with."""

    name: str
    tools: tuple[str, ...]
    python: bool
    environment: tuple[tuple[str, str], ...]


_BASE_TOOLS = ("bash", "ls", "sed", "grep")
_BASE_ENVIRONMENT = (
    ("PATH", SEARCH_PATH),
    ("HOME", WORK_DIRECTORY),
    ("LANG", "C.UTF-8"),
    ("TZ", "UTC"),
    ("TERM", "dumb"),
)
_CODE_ENVIRONMENT = (
    ("PATH", f"{PYTHON_LINKS}:{SEARCH_PATH}"),
    *_BASE_ENVIRONMENT[1:],
    ("PYTHONDONTWRITEBYTECODE", "1"),
    ("PYTHONNOUSERSITE", "1"),
    ("PIP_NO_INDEX", "1"),
)
_IMAGES: Mapping[str, Image] = MappingProxyType(
    {
        image.name: image
        for image in (
            Image("sandbox-base:v1", _BASE_TOOLS, False, _BASE_ENVIRONMENT),
            Image("sandbox-code:v3", _BASE_TOOLS, True, _CODE_ENVIRONMENT),
        )
    }
)


def known_images() -> tuple[str, ...]:
    """The names that `find_image` accepts, sorted."""
    return tuple(sorted(_IMAGES))


def find_image(name: str) -> Image:
    """The declaration of a name. Raises: UserError that lists the known names."""
    image = _IMAGES.get(name)
    if image is None:
        known = ", ".join(known_images())
        raise UserError(f"image {name!r} is unknown", hint=f"use one of: {known}")
    return image


class ImageShelf:
    """The images as they are on this machine; keeps what it worked out, and a folder for /etc."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._digests: dict[str, str] = {}
        self._arguments: dict[str, tuple[str, ...]] = {}

    def digest(self, name: str) -> str:
        """sha256 over the declaration and the versions of its tools. Raises: UserError."""
        if name not in self._digests:
            image = find_image(name)
            content = {
                "image": asdict(image),
                "directories": HOST_DIRECTORIES,
                "etc": dict(ETC_FILES),
                "tools": {tool: read_version(image, tool) for tool in image.tools},
                "python": platform.python_version() if image.python else None,
                "machine": platform.machine(),
            }
            text = json.dumps(content, sort_keys=True)
            self._digests[name] = hashlib.sha256(text.encode()).hexdigest()
        return self._digests[name]

    def arguments(self, name: str) -> tuple[str, ...]:
        """The bubblewrap arguments that mount an image's read-only part. Raises: UserError."""
        if name not in self._arguments:
            image = find_image(name)
            for tool in image.tools:
                find_tool(image, tool)
            etc = self._folder / "etc"
            if not etc.exists():
                write_etc(etc)
            python = to_python_arguments() if image.python else []
            self._arguments[name] = (
                *to_host_arguments(),
                *to_etc_arguments(etc),
                *python,
            )
        return self._arguments[name]


def find_tool(image: Image, tool: str) -> str:
    """Where a tool of an image lies on this machine. Raises: UserError where it does not."""
    path = shutil.which(tool, path=SEARCH_PATH)
    if path is None:
        raise UserError(
            f"image {image.name!r} needs the program {tool!r}, which is not in {SEARCH_PATH}",
            hint=f"install {tool} with the system's package manager",
        )
    return path


def read_version(image: Image, tool: str) -> str:
    """The first line that a tool says about its version."""
    done = subprocess.run(
        [find_tool(image, tool), "--version"],
        env={"LC_ALL": "C", "PATH": SEARCH_PATH},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
        timeout=30,
        start_new_session=True,  # a tool that Ctrl-C ended would say no version
    )
    return done.stdout.decode(errors="replace").partition("\n")[0]


def write_etc(etc: Path) -> None:
    """Generate the minimal /etc: a user and a host name, and where to bind what the host has."""
    etc.mkdir(mode=0o755)
    for name, text in ETC_FILES.items():
        (etc / name).write_text(text)
    for path in HOST_ETC:
        if path.is_dir():
            (etc / path.name).mkdir()
        elif path.exists():
            (etc / path.name).touch()


def to_etc_arguments(etc: Path) -> list[str]:
    """Mount the generated /etc, and the little that it needs of the host's."""
    arguments = ["--ro-bind", str(etc), "/etc"]
    for path in HOST_ETC:
        if path.exists():
            arguments += ["--ro-bind", str(path), str(path)]
    return arguments


def to_host_arguments() -> list[str]:
    """Mount the host's program directories; merged-/usr links stay links."""
    arguments: list[str] = []
    for directory in HOST_DIRECTORIES:
        path = Path(directory)
        if path.is_symlink():
            arguments += ["--symlink", str(path.readlink()), directory]
        elif path.is_dir():
            arguments += ["--ro-bind", directory, directory]
    return arguments


def to_python_arguments() -> list[str]:
    """Bring the running interpreter in: its prefix where it lies outside /usr, and two links.

    The prefix keeps its path: a build with a shared library has that path compiled in, and
    elsewhere would load another interpreter's library. Site-packages are covered, so that only
    the standard library can be imported.
    """
    prefix = sys.base_prefix
    arguments: list[str] = []
    if not Path(prefix).is_relative_to("/usr"):
        for path in dict.fromkeys((os.path.realpath(prefix), prefix)):
            arguments += ["--ro-bind", path, path]
    short = f"python{sys.version_info.major}.{sys.version_info.minor}"
    covered = (
        f"{prefix}/lib/{short}/site-packages",
        f"/usr/local/lib/{short}/site-packages",
        f"/usr/local/lib/{short}/dist-packages",
        "/usr/lib/python3/dist-packages",
    )
    for path in dict.fromkeys(os.path.realpath(path) for path in covered):
        if Path(path).is_dir():
            arguments += ["--tmpfs", path, "--remount-ro", path]
    program = Path(prefix) / "bin" / short
    target = str(program) if program.exists() else os.path.realpath(sys.executable)
    for link in ("python3", "python"):
        arguments += ["--symlink", target, f"{PYTHON_LINKS}/{link}"]
    return arguments
