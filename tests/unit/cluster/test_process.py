"""What a process of a server writes into its log."""

import io
import logging

from turnwire.cluster.process import LOG_FORMAT, WithoutTexts


def test_a_logged_error_shows_where_it_happened_and_not_what_it_says() -> None:
    written = io.StringIO()
    handler = logging.StreamHandler(written)
    handler.setFormatter(WithoutTexts(LOG_FORMAT))
    logger = logging.Logger("turnwire.test")
    logger.addHandler(handler)
    user_text = "what a user wrote"
    try:
        try:
            raise KeyError(user_text)
        except KeyError as error:
            raise ValueError(f"quotes {user_text}") from error
    except ValueError:
        logger.exception("turn.failed %s", "resp_1")
    lines = written.getvalue()
    assert "turn.failed resp_1" in lines
    assert "ValueError\n" in lines
    assert "raise KeyError(user_text)" in lines
    assert user_text not in lines
