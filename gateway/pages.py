"""What is answered without a turn: from what the gateway knows, or by counting."""

from collections.abc import Awaitable, Callable

import orjson
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from turnwire.gateway import render
from turnwire.gateway.auth import Principal
from turnwire.gateway.body import held_body
from turnwire.gateway.turns import Serving
from turnwire.pipelines.counting import input_tokens
from turnwire.pipelines.messages import Model
from turnwire.pipelines.protocol.codec import decode_envelope
from turnwire.pipelines.protocol.errors import NoSuchModel, Overloaded
from turnwire.pipelines.turn_request import TurnRequest

Page = Callable[[Request, Principal], Awaitable[object]]


class Pages:
    """All are guarded by the door; ids of another tenant look like unknown ones."""

    def __init__(self, serving: Serving) -> None:
        self._serving = serving

    async def input_tokens(self, request: Request, principal: Principal) -> object:
        serving = self._serving
        serving.places.take()
        try:
            async with (
                held_body(request, serving) as body,
                serving.ports.leases.shared(principal.tenant) as leased,
            ):
                counted = TurnRequest(
                    response_id="",
                    frame=body,
                    tenant=principal.tenant,
                    key_id=principal.key_id,
                    model=decode_envelope(body).model,
                    transport="http",
                )
                tokens = await input_tokens(
                    counted, serving.memory(leased, request.headers), serving.services
                )
        finally:
            serving.places.give_back()
        return {"object": "response.input_tokens", "input_tokens": tokens}

    async def models(self, request: Request, principal: Principal) -> object:
        models = self._serving.ports.models()
        return {"object": "list", "data": [_model(model) for model in models]}

    async def model(self, request: Request, principal: Principal) -> object:
        name = request.path_params["name"]
        for model in self._serving.ports.models():
            if name == model.name or name in model.aliases:
                return _model(model)
        raise NoSuchModel(f"The model {name[:128]!r} is not served here.", "model")

    async def metrics(self, request: Request, principal: Principal) -> object:
        """In the text format of Prometheus."""
        text = self._serving.observation.text()
        return Response(text, headers={"content-type": CONTENT_TYPE_LATEST})

    async def alive(self, request: Request) -> Response:
        return Response(b'{"status":"ok"}', media_type="application/json")

    async def ready(self, request: Request) -> Response:
        if self._serving.clients.draining or not self._serving.ports.ready():
            return render.error_response(Overloaded("No turn can be served at the moment."))
        return Response(b'{"status":"ready"}', media_type="application/json")

    def guarded(self, page: Page) -> Callable[[Request], Awaitable[Response]]:
        """`page` for those who may see it; whatever it raises becomes an error body."""

        async def answer(request: Request) -> Response:
            try:
                content = await page(request, self._serving.door.admit(request.headers))
            except ClientDisconnect:
                raise
            except Exception as error:
                return render.error_response(render.hidden(error, request.url.path))
            if isinstance(content, Response):
                return content
            body = content if isinstance(content, bytes) else orjson.dumps(content)
            return Response(body, media_type="application/json")

        return answer


def _model(model: Model) -> dict[str, object]:
    return {"id": model.name, "object": "model", "created": 0, "owned_by": "turnwire"}
