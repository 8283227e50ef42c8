"""The ASGI application: which path is served by what."""

from collections.abc import Awaitable, Callable

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Match, Route, WebSocketRoute
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocket

from turnwire.gateway import render
from turnwire.gateway.background import BackgroundTurns
from turnwire.gateway.compaction import CompactExchange
from turnwire.gateway.conversations import conversation_routes
from turnwire.gateway.http import TurnExchange
from turnwire.gateway.pages import Pages
from turnwire.gateway.responses import ResponsePages
from turnwire.gateway.turns import Serving
from turnwire.gateway.websocket import serve_websocket
from turnwire.pipelines.protocol.errors import MethodNotAllowed, NotFound


def make_app(serving: Serving, turns: BackgroundTurns) -> Starlette:
    pages = Pages(serving)
    responses = ResponsePages(serving, turns)

    async def create(scope: Scope, receive: Receive, send: Send) -> None:
        await TurnExchange(serving, responses)(scope, receive, send)

    async def compact(scope: Scope, receive: Receive, send: Send) -> None:
        await CompactExchange(serving, responses)(scope, receive, send)

    async def websocket(socket: WebSocket) -> None:
        await serve_websocket(socket, serving)

    one = "/v1/responses/{response_id}"
    app = Starlette(
        routes=[
            WebSocketRoute("/v1/responses", websocket),
            WebSocketRoute("/{path:path}", _no_such_socket),
            Route("/v1/responses", _Asgi(create), methods=["POST"]),
            Route("/v1/responses/compact", _Asgi(compact), methods=["POST"]),
            Route(
                "/v1/responses/input_tokens", pages.guarded(pages.input_tokens), methods=["POST"]
            ),
            Route(one, pages.guarded(responses.retrieve), methods=["GET"]),
            Route(one, pages.guarded(responses.delete), methods=["DELETE"]),
            Route(f"{one}/cancel", pages.guarded(responses.cancel), methods=["POST"]),
            Route(f"{one}/input_items", pages.guarded(responses.input_items), methods=["GET"]),
            *conversation_routes(serving, pages.guarded),
            Route("/v1/models", pages.guarded(pages.models), methods=["GET"]),
            Route("/v1/models/{name:path}", pages.guarded(pages.model), methods=["GET"]),
            Route("/metrics", pages.guarded(pages.metrics), methods=["GET"]),
            Route("/healthz", pages.alive, methods=["GET"]),
            Route("/readyz", pages.ready, methods=["GET"]),
        ],
        exception_handlers={HTTPException: _no_such_page, ClientDisconnect: _nobody_there},
    )
    # A redirect would be the one answer here without a body that says what is wrong.
    app.router.redirect_slashes = False
    return app


class _Asgi:
    """An object, so that the router hands it the bare ASGI call."""

    def __init__(self, app: Callable[[Scope, Receive, Send], Awaitable[None]]) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(scope, receive, send)


async def _no_such_page(request: Request, error: Exception) -> Response:
    path = request.url.path[:256]
    allow = sorted(_methods(request))
    if not allow:
        return render.error_response(NotFound(f"There is no {request.method} {path} here."))
    names = ", ".join(allow)
    refusal = MethodNotAllowed(f"{path} does not take {request.method}, only {names}.")
    return render.error_response(refusal, names)


def _methods(request: Request) -> set[str]:
    """What the request's path takes."""
    return {
        method
        for route in request.app.routes
        if isinstance(route, Route) and route.matches(request.scope)[0] is not Match.NONE
        for method in route.methods or ()
    }


async def _no_such_socket(socket: WebSocket) -> None:
    refusal = NotFound(f"There is no WebSocket at {socket.url.path[:256]}, only at /v1/responses.")
    await socket.send_denial_response(render.error_response(refusal))


async def _nobody_there(request: Request, error: Exception) -> Response:
    """The client left while it sent its request: this answer is not read."""
    return Response(status_code=499)
