"""The ASGI application: which path is served by what."""

from collections.abc import Awaitable, Callable

import orjson
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, WebSocketRoute
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocket

from turnwire.gateway import render
from turnwire.gateway.auth import Principal
from turnwire.gateway.http import TurnExchange
from turnwire.gateway.turns import Serving
from turnwire.gateway.websocket import serve_websocket
from turnwire.pipelines.messages import Delete, Fetch, Model
from turnwire.pipelines.protocol.errors import ModelNotFound, NotFound, Overloaded

Page = Callable[[Request, Principal], Awaitable[object]]


class Pages:
    """What is answered from what the gateway knows, or storage does."""

    def __init__(self, serving: Serving) -> None:
        self._serving = serving

    async def response(self, request: Request, principal: Principal) -> object:
        command = Fetch(principal.tenant, request.path_params["response_id"])
        stored = await self._serving.ports.store.fetch(command)
        return stored.response

    async def delete_response(self, request: Request, principal: Principal) -> object:
        response_id = request.path_params["response_id"]
        await self._serving.ports.store.delete(Delete(principal.tenant, response_id))
        return {"id": response_id, "object": "response", "deleted": True}

    async def models(self, request: Request, principal: Principal) -> object:
        models = self._serving.ports.models()
        return {"object": "list", "data": [_model(model) for model in models]}

    async def model(self, request: Request, principal: Principal) -> object:
        name = request.path_params["name"]
        for model in self._serving.ports.models():
            if name == model.name or name in model.aliases:
                return _model(model)
        raise ModelNotFound(f"The model {name[:128]!r} is not served here.", "model")

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
            except Exception as error:
                return render.error_response(render.hidden(error, request.url.path))
            body = content if isinstance(content, bytes) else orjson.dumps(content)
            return Response(body, media_type="application/json")

        return answer


def make_app(serving: Serving) -> Starlette:
    pages = Pages(serving)

    async def create(scope: Scope, receive: Receive, send: Send) -> None:
        await TurnExchange(serving)(scope, receive, send)

    async def websocket(socket: WebSocket) -> None:
        await serve_websocket(socket, serving)

    one = "/v1/responses/{response_id}"
    return Starlette(
        routes=[
            WebSocketRoute("/v1/responses", websocket),
            Route("/v1/responses", _Asgi(create), methods=["POST"]),
            Route(one, pages.guarded(pages.response), methods=["GET"]),
            Route(one, pages.guarded(pages.delete_response), methods=["DELETE"]),
            Route("/v1/models", pages.guarded(pages.models), methods=["GET"]),
            Route("/v1/models/{name:path}", pages.guarded(pages.model), methods=["GET"]),
            Route("/healthz", pages.alive, methods=["GET"]),
            Route("/readyz", pages.ready, methods=["GET"]),
        ],
        exception_handlers={HTTPException: _no_such_page},
    )


class _Asgi:
    """An object, so that the router hands it the bare ASGI call."""

    def __init__(self, app: Callable[[Scope, Receive, Send], Awaitable[None]]) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(scope, receive, send)


async def _no_such_page(request: Request, error: Exception) -> Response:
    path = request.url.path
    return render.error_response(NotFound(f"There is no {request.method} {path[:256]} here."))


def _model(model: Model) -> dict[str, object]:
    return {"id": model.name, "object": "model", "created": 0, "owned_by": "turnwire"}
