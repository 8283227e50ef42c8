"""The models that servers for client tests have."""

MODELS = """[
    {"name": "sim-agent", "engine": "simulated", "simulated": {"agent_tool_turns": 8}},
    {"name": "sim-max", "engine": "simulated"},
    {"name": "sim-65", "engine": "simulated", "context_window": 1000},
    {"name": "smollm2", "engine": "llama", "prompt_format": "chatml",
     "llama": {"context_tokens": 512}}
]"""
"""`sim-65` and `smollm2` are too small for an agent's first request: one notices when the prompt
is rendered, the other when it is evaluated."""
