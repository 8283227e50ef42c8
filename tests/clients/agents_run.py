"""An agent with a function tool, over either transport. Runs in the Agents SDK's own environment.

usage: agents_run.py URL MODEL websocket|http
"""

import asyncio
import json
import sys

from agents import (
    Agent,
    ModelSettings,
    OpenAIProvider,
    RunConfig,
    Runner,
    function_tool,
    set_tracing_disabled,
)

asked: list[str] = []


@function_tool
def look_up(word: str) -> str:
    """Look a word up."""
    asked.append(word)
    return "remember:COLOUR=teal"


async def main(url: str, model: str, transport: str) -> None:
    set_tracing_disabled(True)
    provider = OpenAIProvider(
        api_key="none",
        base_url=url,
        use_responses=True,
        use_responses_websocket=transport == "websocket",
    )
    agent = Agent(name="clerk", instructions="Be brief.", model=model, tools=[look_up])
    config = RunConfig(model_provider=provider, tracing_disabled=True)
    first = await Runner.run(agent, "Look it up.", run_config=config)
    second = await Runner.run(
        agent, "recall:COLOUR", run_config=config, previous_response_id=first.last_response_id
    )
    # Without a parent the SDK repeats the whole conversation itself.
    repeated = [*first.to_input_list(), {"role": "user", "content": "recall:COLOUR"}]
    third = await Runner.run(agent, repeated, run_config=config)
    streamed = Runner.run_streamed(
        Agent(name="plain", model=model, model_settings=ModelSettings(store=False)),
        "hi",
        run_config=config,
    )
    events = [event.type async for event in streamed.stream_events()]
    await provider.aclose()
    print(
        json.dumps(
            {
                "asked": len(asked),
                "first": first.final_output,
                "second": second.final_output,
                "third": third.final_output,
                "streamed": streamed.final_output,
                "events": len(events),
                "usage": first.context_wrapper.usage.requests,
            }
        )
    )


asyncio.run(main(*sys.argv[1:]))
