"""One call on a channel with the type of its answer."""

import asyncio
from typing import TypeVar

from turnwire.actors.channel import Channel
from turnwire.pipelines.messages import Message
from turnwire.pipelines.protocol.errors import Internal

Answer = TypeVar("Answer", bound=Message)


async def ask(channel: Channel, command: Message, answer: type[Answer]) -> Answer:
    """Raises what the other side refuses with, and Overloaded when it is gone."""
    return expect(await channel.call(command), answer)


def expect(reply: Message, answer: type[Answer]) -> Answer:
    if not isinstance(reply, answer):
        raise Internal(f"{answer.__name__} was expected, {type(reply).__name__} came")
    return reply


def forget(reply: asyncio.Future[Message]) -> None:
    """A done-callback for an answer nobody waits for: its error is taken, not reported as lost."""
    if not reply.cancelled():
        reply.exception()
