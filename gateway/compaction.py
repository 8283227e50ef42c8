"""`POST /v1/responses/compact`: one turn over HTTP whose response is the compacted conversation."""

from turnwire.gateway.http import TurnExchange
from turnwire.pipelines.compaction import compact_frame, compaction_object
from turnwire.pipelines.messages import Json


class CompactExchange(TurnExchange):
    """Screened, billed and cancelled like any other turn, since it is one."""

    def frame(self, body: Json) -> Json:
        return compact_frame(body)

    def answer(self, response: Json) -> Json:
        return compaction_object(response)
