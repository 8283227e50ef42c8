"""Conversations and their items over HTTP. Turns in them are made as all turns are."""

import os
import secrets
from collections.abc import Awaitable, Callable

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from turnwire.gateway.auth import Principal
from turnwire.gateway.body import held_body
from turnwire.gateway.turns import Serving
from turnwire.pipelines import messages as m
from turnwire.pipelines.conversations import check_ids
from turnwire.pipelines.protocol.conversations import (
    conversation_object,
    parse_addition,
    parse_create,
    parse_update,
)
from turnwire.pipelines.protocol.errors import ContentRefused, NotFound
from turnwire.pipelines.protocol.ids import is_plain, new_id
from turnwire.pipelines.protocol.include import included
from turnwire.pipelines.protocol.item_list import list_object, listed_item, page_query
from turnwire.pipelines.protocol.items import Item, new_text

Guard = Callable[
    [Callable[[Request, Principal], Awaitable[object]]], Callable[[Request], Awaitable[Response]]
]


def conversation_routes(serving: Serving, guarded: Guard) -> list[Route]:
    pages = ConversationPages(serving)
    one = "/v1/conversations/{conversation_id}"
    item = f"{one}/items/{{item_id}}"
    return [
        Route("/v1/conversations", guarded(pages.create), methods=["POST"]),
        Route(one, guarded(pages.retrieve), methods=["GET"]),
        Route(one, guarded(pages.update), methods=["POST"]),
        Route(one, guarded(pages.delete), methods=["DELETE"]),
        Route(f"{one}/items", guarded(pages.add_items), methods=["POST"]),
        Route(f"{one}/items", guarded(pages.list_items), methods=["GET"]),
        Route(item, guarded(pages.retrieve_item), methods=["GET"]),
        Route(item, guarded(pages.delete_item), methods=["DELETE"]),
    ]


class ConversationPages:
    """All are guarded by the door; ids of another tenant look like unknown ones."""

    def __init__(self, serving: Serving) -> None:
        self._serving = serving
        self._store = serving.ports.store

    async def create(self, request: Request, principal: Principal) -> object:
        async with held_body(request, self._serving) as body:
            items, metadata = parse_create(body, os.urandom)
            check_ids(items, at="items")
            await self._screened(items, principal)
            command = m.CreateConversation(
                principal.tenant,
                new_id("conv", os.urandom),
                self._serving.clock.today_s(),
                metadata,
                tuple(item.json for item in items),
            )
            return conversation_object(await self._store.conversation(command))

    async def retrieve(self, request: Request, principal: Principal) -> object:
        command = m.FetchConversation(principal.tenant, _conversation_id(request))
        return conversation_object(await self._store.conversation(command))

    async def update(self, request: Request, principal: Principal) -> object:
        conversation_id = _conversation_id(request)
        async with held_body(request, self._serving) as body:
            metadata = parse_update(body)
        command = m.UpdateConversation(principal.tenant, conversation_id, metadata)
        return conversation_object(await self._store.conversation(command))

    async def delete(self, request: Request, principal: Principal) -> object:
        conversation_id = _conversation_id(request)
        await self._store.change(m.DeleteConversation(principal.tenant, conversation_id))
        self._serving.ports.leases.forget(principal.tenant, "", conversation_id)
        return {"id": conversation_id, "object": "conversation.deleted", "deleted": True}

    async def add_items(self, request: Request, principal: Principal) -> object:
        tenant, conversation_id = principal.tenant, _conversation_id(request)
        include = included(request.query_params.multi_items())
        async with held_body(request, self._serving) as body:
            items = parse_addition(body, os.urandom)
            check_ids(items, at="items")
            await self._screened(items, principal)
            given = tuple(item.json for item in items)
            addition_id = f"add_{secrets.token_hex(16)}"
            running = self._serving.services.conversations
            with running.changing(tenant, conversation_id, addition_id):
                command = m.AddItems(tenant, conversation_id, addition_id, given)
                await self._store.change(command)
            return list_object(given, include, more=False)

    async def list_items(self, request: Request, principal: Principal) -> object:
        query = page_query(request.query_params)
        include = included(request.query_params.multi_items())
        command = m.ListItems(
            principal.tenant,
            _conversation_id(request),
            query.limit,
            query.order == "desc",
            query.after,
        )
        page = await self._store.items(command)
        return list_object(page.items, include, more=page.more)

    async def retrieve_item(self, request: Request, principal: Principal) -> object:
        include = included(request.query_params.multi_items())
        place = _item(request, principal)
        page = await self._store.items(m.FetchItem(*place))
        return listed_item(page.items[0], include)

    async def delete_item(self, request: Request, principal: Principal) -> object:
        tenant, conversation_id, item_id = _item(request, principal)
        owner = f"del_{secrets.token_hex(16)}"
        with self._serving.services.conversations.changing(tenant, conversation_id, owner):
            command = m.DeleteItem(tenant, conversation_id, item_id)
            return conversation_object(await self._store.conversation(command))

    async def _screened(self, items: tuple[Item, ...], principal: Principal) -> None:
        """What is added here is new to no turn later, so a policy that blocks blocks it now."""
        texts = tuple(text for item in items if (text := new_text(item)))
        if self._serving.services.limits.policy != "block" or not texts:
            return
        command = m.Screen(f"add_{secrets.token_hex(16)}", principal.tenant, texts)
        verdict = await self._serving.ports.safety.screen(command)
        if verdict.flagged or not verdict.complete:
            raise ContentRefused("The items were refused by this server's safety policy.", "items")


def _conversation_id(request: Request) -> str:
    conversation_id: str = request.path_params["conversation_id"]
    if not is_plain(conversation_id):
        raise NotFound("There is no conversation with such an id.", "conversation")
    return conversation_id


def _item(request: Request, principal: Principal) -> tuple[str, str, str]:
    item_id: str = request.path_params["item_id"]
    if "\0" in item_id:
        raise NotFound("There is no item with such an id.", "item_id")
    return principal.tenant, _conversation_id(request), item_id
