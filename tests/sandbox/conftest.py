"""One provider a test, closed behind it: what a test leaves in a box dies with it."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from limosa.sandbox.bubblewrap import BubblewrapProvider, BubblewrapSandbox

BASE = "sandbox-base:v1"
CODE = "sandbox-code:v3"


@pytest.fixture
async def provider(tmp_path: Path) -> AsyncIterator[BubblewrapProvider]:
    boxes = BubblewrapProvider(8, scratch=tmp_path)
    yield boxes
    await boxes.close()


@pytest.fixture
async def box(provider: BubblewrapProvider) -> BubblewrapSandbox:
    return await provider.create(CODE)
