"""A compaction item while it is made: nothing is seen of the summary."""

from turnwire.pipelines.messages import Json
from turnwire.pipelines.protocol.events import EventWriter, place, quoted


class OpenCompaction:
    def __init__(self, writer: EventWriter, item_id: str, output_index: int) -> None:
        self.id = item_id
        self.output_index = output_index
        self._writer = writer

    prefix = "cmp"

    def opened(self) -> list[Json]:
        at = place(quoted(self.id), self.output_index)
        return [
            self._writer.event(b"response.output_item.added", self._members("")[0]),
            self._writer.event(b"response.compaction.compacting", at),
        ]

    def closed(self, sealed: str) -> tuple[list[Json], Json]:
        """The closing event, and the finished item."""
        members, item = self._members(sealed)
        return [self._writer.event(b"response.output_item.done", members)], item

    def _members(self, sealed: str) -> tuple[Json, Json]:
        item = b'{"type":"compaction","id":%b,"encrypted_content":%b}' % (
            quoted(self.id),
            quoted(sealed),
        )
        return b'"output_index":%d,"item":%b' % (self.output_index, item), item
