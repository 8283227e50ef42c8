"""What a connection keeps of routes, and what a gateway bounds over all connections."""

import pytest
from scripted_ports import FakeLedger, FakeRouter, World
from turn_worlds import ManualClock

from turnwire.pipelines import messages as m
from turnwire.pipelines.limits import ByteBudget, Places, Settlements
from turnwire.pipelines.protocol.errors import ModelNotFound, Overloaded
from turnwire.pipelines.routes import MAX_ROUTES, Routes


class AnyModel(FakeRouter):
    """Serves whatever is asked for."""

    async def resolve(self, command: m.Resolve) -> m.Route:
        return m.Route(m.Model(command.model, "items"), m.Endpoint("w1", "here"))


async def test_a_route_is_kept_until_its_worker_goes() -> None:
    world = World()
    routes = Routes(FakeRouter(world), ManualClock())
    route = await routes.find("scripted", give_up_s=0)
    assert routes.valid("scripted") == route
    world.workers = ["w2"]
    assert routes.valid("scripted") is None
    assert routes.model("scripted") == route.model


async def test_the_oldest_route_is_forgotten_first() -> None:
    routes = Routes(AnyModel(World()), ManualClock())
    for number in range(MAX_ROUTES + 1):
        await routes.find(f"model-{number}", give_up_s=0)
    assert routes.model("model-0") is None
    assert routes.model("model-1") is not None


async def test_an_unknown_model_is_not_waited_for() -> None:
    clock = ManualClock()
    with pytest.raises(ModelNotFound):
        await Routes(FakeRouter(World()), clock).find("nobody", clock.at_s + 10)
    assert clock.at_s == 1000.0


def test_bytes_and_places_are_refused_beyond_their_bound_and_usable_again() -> None:
    budget, places = ByteBudget(10), Places(1)
    budget.take(10)
    with pytest.raises(Overloaded):
        budget.take(1)
    budget.give_back(10)
    budget.take(1)
    assert repr(budget) == "<ByteBudget 1/10>"
    places.take()
    with pytest.raises(Overloaded):
        places.take()
    places.give_back()
    places.take()
    assert repr(places) == "<Places 1/1>"


def test_records_wait_in_order_until_the_ledger_has_room() -> None:
    world = World(ledger_room=0)
    settlements = Settlements(FakeLedger(world))
    for name in ("resp_1", "resp_2"):
        settlements.settle(m.UsageRecord(name, "t", "k", "m", "completed", 1, m.Counts()))
    with pytest.raises(Overloaded):
        settlements.admit()
    world.ledger_room = 9
    settlements.admit()
    assert [record.response_id for record in world.records] == ["resp_1", "resp_2"]
    assert settlements.owed == 0
