"""One home for the cases that leave it as they found it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.streaming import StreamHouse, weights


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StreamHouse]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EBBTIDE_UPLOAD_IDLE_S", "3")
        made = StreamHouse(tmp_path_factory.mktemp("house"), weights(8))
        made.start()
        made.both()
        yield made
        made.close()
