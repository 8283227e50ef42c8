"""How long the prompt of a request would be, without a turn."""

from turnwire.pipelines.messages import CountPrompt, CountTokens, Route
from turnwire.pipelines.preparation import count
from turnwire.pipelines.protocol.errors import InvalidRequest
from turnwire.pipelines.services import Services
from turnwire.pipelines.turn_request import Memory, TurnRequest


async def input_tokens(request: TurnRequest, memory: Memory, services: Services) -> int:
    """What a turn with this frame would report. Raises what would refuse the turn."""
    route = await _route(request.model, memory, services)
    command = CountTokens(memory.connection_id, request.frame, route.model)
    counted = await count(command, memory.connection, services.store, request.tenant)
    if counted.prompt is None:
        return counted.input_tokens
    whole = CountPrompt(route.model.name, request.tenant, counted.prompt)
    return (await services.engine.count(route.worker, whole)).input_tokens


async def _route(name: str | None, memory: Memory, services: Services) -> Route:
    if not name:
        raise InvalidRequest("The field 'model' is required.", "model")
    give_up_s = services.clock.now_s() + services.limits.worker_wait_s
    return memory.routes.valid(name) or await memory.routes.find(name, give_up_s)
