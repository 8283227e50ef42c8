"""Keys, hosts and origins: who is let in, on both transports."""

from pathlib import Path

import httpx
import openai
import pytest
from gateway_worlds import Opener, turn
from pydantic import SecretStr
from scripted_ports import create
from websockets.exceptions import InvalidStatus

from turnwire.gateway.auth import KEYLESS, Door, Keys, Principal, is_loopback, load_keys
from turnwire.pipelines.config import GatewaySettings
from turnwire.pipelines.protocol.errors import Forbidden, InvalidApiKey

KEYED = GatewaySettings(port=0, api_key=SecretStr("sk-one"))


def door(settings: GatewaySettings) -> Door:
    return Door(settings, load_keys(settings))


async def test_a_key_is_needed_on_both_transports_and_checked_at_the_upgrade(
    opener: Opener,
) -> None:
    town = await opener.open(settings=KEYED)
    for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "sk-one"}):
        with pytest.raises(InvalidStatus) as refused:
            await town.connect(additional_headers=headers)
        assert refused.value.response.status_code == 401
        assert b"invalid_api_key" in (refused.value.response.body or b"")
    async with town.openai("wrong") as client:
        with pytest.raises(openai.AuthenticationError):
            await client.responses.create(model="scripted", input="hi")
    async with town.openai("sk-one") as client:
        await client.responses.create(model="scripted", input="hi", store=False)
    async with town.connect(additional_headers={"Authorization": "Bearer sk-one"}) as socket:
        assert (await turn(socket))[-1]["type"] == "response.completed"
    assert {record.tenant for record in town.world.records} == {"default"}
    (key_id,) = {record.key_id for record in town.world.records}
    assert "sk-one" not in key_id


async def test_pages_of_a_browser_do_not_reach_a_keyless_server(opener: Opener) -> None:
    town = await opener.open()
    for headers in ({"Origin": "https://evil.example"}, {"Origin": "null"}):
        with pytest.raises(InvalidStatus) as refused:
            await town.connect(additional_headers=headers)
        assert refused.value.response.status_code == 403
    async with httpx.AsyncClient() as client:
        for headers in ({"Origin": "https://evil.example"}, {"Host": "evil.example:8080"}):
            response = await client.post(
                f"{town.http}/responses", content=create(), headers=headers
            )
            assert (response.status_code, response.json()["error"]["code"]) == (403, "forbidden")
    assert town.world.steps == []


async def test_an_allowed_origin_is_let_in(opener: Opener) -> None:
    settings = GatewaySettings(port=0, allowed_origins=("https://app.example",))
    town = await opener.open(settings=settings)
    async with town.connect(additional_headers={"Origin": "https://app.example"}) as socket:
        assert (await turn(socket))[-1]["type"] == "response.completed"


@pytest.mark.parametrize("host", ["0.0.0.0", "192.0.2.1", "example.org", "::"])
def test_a_keyless_server_is_not_opened_to_others(host: str) -> None:
    with pytest.raises(ValueError, match="without an API key"):
        door(GatewaySettings(host=host))
    door(GatewaySettings(host=host, api_key=SecretStr("k")))


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.8.8.8", "::1", "LOCALHOST"])
def test_loopback_names_are_known(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["localhost:8080", "127.0.0.1", "[::1]:1", "[::1]"])
def test_a_keyless_server_answers_to_loopback_names(host: str) -> None:
    assert door(GatewaySettings()).admit({"host": host}) == KEYLESS


@pytest.mark.parametrize("host", ["", "evil.example", "localhost.evil.example", "127.0.0.1.nip.io"])
def test_a_keyless_server_answers_to_no_other_name(host: str) -> None:
    with pytest.raises(Forbidden):
        door(GatewaySettings()).admit({"host": host})


def test_more_host_names_can_be_allowed_one_by_one_or_all() -> None:
    door(GatewaySettings(allowed_hosts=("box.lan",))).admit({"host": "box.lan:80"})
    door(GatewaySettings(allowed_hosts=("*",))).admit({"host": "whatever"})
    keyed = GatewaySettings(host="0.0.0.0", api_key=SecretStr("k"), allowed_hosts=("box.lan",))
    with pytest.raises(Forbidden):
        door(keyed).admit({"host": "other.lan", "authorization": "Bearer k"})


def test_a_key_file_gives_each_key_its_tenant(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("# ours\nsk-a team-a\n\nsk-b team-b  # theirs\n")
    keys = load_keys(GatewaySettings(key_file=str(file), api_key=SecretStr("sk-c")))
    tenants = [keys.principal(f"Bearer {key}").tenant for key in ("sk-a", "sk-b", "sk-c")]
    assert tenants == ["team-a", "team-b", "default"]
    with pytest.raises(InvalidApiKey):
        keys.principal("Bearer sk-d")


@pytest.mark.parametrize("line", ["only-a-key", "a b c", "sk local"])
def test_a_key_file_that_cannot_be_understood_names_its_line(tmp_path: Path, line: str) -> None:
    file = tmp_path / "keys"
    file.write_text(f"sk-a team\n{line}\n")
    with pytest.raises(ValueError, match="line 2"):
        load_keys(GatewaySettings(key_file=str(file)))


def test_keys_are_not_kept() -> None:
    keys = Keys([("sk-secret", "t")])
    assert "sk-secret" not in repr(vars(keys))
    assert isinstance(keys.principal("bearer sk-secret"), Principal)
