"""The Open Responses compliance cases on a whole server, under the setting for them."""

import asyncio

import pytest
from open_responses_cases import CASES, NEED_MORE_THAN_TEXT, Client
from running_server import RunningServer

pytestmark = [pytest.mark.e2e, pytest.mark.slow]


async def _all_at_once(client: Client) -> dict[str, BaseException | None]:
    outcomes = await asyncio.gather(
        *(case(client) for case in CASES.values()), return_exceptions=True
    )
    return dict(zip(CASES, outcomes, strict=True))


@pytest.fixture(scope="module")
def outcomes(open_responses_server: RunningServer) -> dict[str, BaseException | None]:
    """What became of each case when all ran at the same time, as the official runner does it."""
    return asyncio.run(_all_at_once(Client(open_responses_server.url, "sim-1000")))


@pytest.mark.parametrize("case", CASES)
def test_a_case_passes_while_all_others_run(
    outcomes: dict[str, BaseException | None], case: str
) -> None:
    if (error := outcomes[case]) is not None:
        raise error


@pytest.mark.parametrize("case", sorted(set(CASES) - NEED_MORE_THAN_TEXT))
async def test_a_case_is_well_formed_on_a_small_model_with_its_own_output_limit(
    open_responses_server: RunningServer, case: str
) -> None:
    client = Client(open_responses_server.url, "smollm2", capped=True, turn_s=240.0)
    await CASES[case](client)


async def test_an_answer_that_does_not_end_is_cut_at_the_default_limit_and_incomplete(
    open_responses_server: RunningServer,
) -> None:
    client = Client(open_responses_server.url, "smollm2", capped=True, turn_s=240.0)
    story = "Write a very long story about a dragon and a knight."
    response = await client.post(story, temperature=0)
    assert response["status"] == "incomplete"
    assert response["usage"]["output_tokens"] == 1024
    assert response["output"][-1]["status"] == "incomplete"
