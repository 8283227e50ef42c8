"""Every wire scenario, played through the pure core."""

from pathlib import Path

import pytest
from transcript_core import Core
from transcripts import FILES, lines_of, rewrite, text_of


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
async def test_a_transcript_is_played_as_it_is_written(
    path: Path, request: pytest.FixtureRequest
) -> None:
    played = text_of(await Core().play(lines_of(path)))
    if request.config.getoption("--rewrite"):
        rewrite(path, played)
    assert played.split("\n") == text_of(lines_of(path)).split("\n")


def test_there_are_transcripts_and_each_says_what_it_shows() -> None:
    assert len(FILES) >= 60
    for path in FILES:
        first = lines_of(path)[0]
        assert first.kind == "#", path.name
        assert len(first.text) > 20, path.name
