"""The wire scenarios once more: through the real gateway, actors and engine."""

from pathlib import Path

import pytest
from running_server import RunningServer
from transcript_wire import WirePlayer, is_playable
from transcripts import FILES, lines_of

pytestmark = [pytest.mark.e2e, pytest.mark.slow]
PLAYABLE = [path for path in FILES if is_playable(lines_of(path))]


@pytest.mark.parametrize("path", PLAYABLE, ids=lambda path: path.stem)
async def test_a_server_plays_the_transcript(server: RunningServer, path: Path) -> None:
    url = f"ws{server.url.removeprefix('http')}/responses"
    await WirePlayer(url, lines_of(path)).play()


def test_most_transcripts_are_played_by_a_server_too() -> None:
    assert len(PLAYABLE) > len(FILES) * 2 / 3
