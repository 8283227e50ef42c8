"""Who gets which connection actor, told by the state after each step."""

import pytest

from turnwire.pipelines.leasing import Effect, Grant, KillActor, Leasing, StartActor
from turnwire.pipelines.protocol.errors import Overloaded


def warmed(warm: int = 1, *, max_actors: int = 8, per_actor: int = 2) -> Leasing:
    """`warm` actors are ready: a1, a2, ..."""
    leasing = Leasing(warm, max_actors, per_actor)
    for number in range(1, warm + 1):
        assert leasing.refill() == [StartActor(f"a{number}")]
        leasing.started(f"a{number}")
    return leasing


def grants(effects: list[Effect]) -> list[tuple[str, str]]:
    return [(e.lease_id, e.actor_id) for e in effects if isinstance(e, Grant)]


def test_a_lease_gets_a_fresh_actor_and_it_is_its_tenants_from_then_on() -> None:
    leasing = warmed(2)
    assert leasing.lease("l1", "red") == [Grant("l1", "a1")]
    assert repr(leasing) == "<Leasing a1=red:1 a2=fresh:0 | 0 starting | 0 waiting>"
    leasing.release("l1")
    assert repr(leasing) == "<Leasing a1=red:0 a2=fresh:0 | 0 starting | 0 waiting>"


def test_a_used_actor_goes_back_to_its_own_tenant_only() -> None:
    leasing = warmed(2)
    leasing.lease("l1", "red")
    leasing.release("l1")
    assert leasing.lease("l2", "blue") == [Grant("l2", "a2")]
    assert leasing.lease("l3", "red") == [Grant("l3", "a1")]


def test_without_a_fresh_actor_connections_of_one_tenant_share() -> None:
    leasing = warmed(1)
    leasing.lease("l1", "red")
    assert leasing.lease("l2", "red") == [Grant("l2", "a1")]
    assert repr(leasing) == "<Leasing a1=red:2 | 0 starting | 0 waiting>"


def test_the_actor_with_fewest_connections_is_shared_first() -> None:
    leasing = warmed(2, per_actor=9)
    for lease_id in ("l1", "l2", "l3"):
        leasing.lease(lease_id, "red")
    assert leasing.lease("l4", "red") == [Grant("l4", "a2")]


def test_another_tenant_never_shares_and_has_an_actor_started() -> None:
    leasing = warmed(1)
    leasing.lease("l1", "red")
    assert leasing.lease("l2", "blue") == [StartActor("a2")]
    assert repr(leasing) == "<Leasing a1=red:1 | 1 starting | 1 waiting>"
    assert leasing.started("a2") == [Grant("l2", "a2")]


def test_fifty_at_once_on_three_warm_actors_are_served_by_sharing() -> None:
    leasing = warmed(3, max_actors=64, per_actor=32)
    effects = [e for number in range(50) for e in leasing.lease(f"l{number}", "red")]
    assert len(grants(effects)) == 50
    assert repr(leasing) == "<Leasing a1=red:17 a2=red:17 a3=red:16 | 0 starting | 0 waiting>"


def test_one_new_actor_serves_all_of_its_tenant_that_wait() -> None:
    leasing = warmed(0)
    assert leasing.lease("l1", "red") == [StartActor("a1")]
    assert leasing.lease("l2", "red") == []
    assert grants(leasing.started("a1")) == [("l1", "a1"), ("l2", "a1")]


def test_only_so_many_actors_are_started_at_once() -> None:
    leasing = warmed(0)
    started = [e for number in range(4) for e in leasing.lease(f"l{number}", f"tenant{number}")]
    assert started == [StartActor("a1"), StartActor("a2")]
    assert leasing.started("a1") == [Grant("l0", "a1"), StartActor("a3")]


def test_an_idle_actor_of_another_tenant_makes_room_when_the_budget_is_used_up() -> None:
    leasing = warmed(1, max_actors=1)
    leasing.lease("l1", "red")
    leasing.release("l1")
    assert leasing.lease("l2", "blue") == [KillActor("a1"), StartActor("a2")]
    assert leasing.started("a2") == [Grant("l2", "a2")]


def test_a_busy_actor_is_never_taken_and_the_lease_waits() -> None:
    leasing = warmed(1, max_actors=1)
    leasing.lease("l1", "red")
    assert leasing.lease("l2", "blue") == []
    assert leasing.release("l1") == [KillActor("a1"), StartActor("a2")]


def test_no_more_idle_actors_are_kept_than_the_warm_stock_has() -> None:
    leasing = warmed(2, max_actors=8)
    for number in range(3):
        for effect in leasing.lease(f"l{number}", f"tenant{number}"):
            if isinstance(effect, StartActor):
                leasing.started(effect.actor_id)
    assert [leasing.release(f"l{number}") for number in range(3)] == [[], [], [KillActor("a1")]]


def test_the_leases_of_a_dead_actor_are_served_anew_before_all_others() -> None:
    leasing = warmed(1, max_actors=2)
    leasing.lease("l1", "red")
    leasing.lease("l2", "red")
    leasing.lease("l3", "blue")
    assert leasing.lost("a1") == [StartActor("a3")]
    assert repr(leasing) == "<Leasing | 2 starting | 3 waiting>"
    assert grants(leasing.started("a2")) == [("l1", "a2"), ("l2", "a2")]
    assert grants(leasing.started("a3")) == [("l3", "a3")]


def test_a_lease_that_gave_up_waiting_gets_nothing() -> None:
    leasing = warmed(0)
    leasing.lease("l1", "red")
    leasing.release("l1")
    assert leasing.started("a1") == []
    assert repr(leasing) == "<Leasing a1=fresh:0 | 0 starting | 0 waiting>"


def test_the_warm_stock_is_refilled_one_by_one() -> None:
    leasing = warmed(2)
    leasing.lease("l1", "red")
    leasing.lease("l2", "blue")
    assert leasing.refill() == [StartActor("a3")]
    assert leasing.refill() == []
    leasing.started("a3")
    assert leasing.refill() == [StartActor("a4")]
    leasing.started("a4")
    assert leasing.refill() == []


def test_the_warm_stock_stays_within_the_budget() -> None:
    leasing = warmed(2, max_actors=2)
    leasing.lease("l1", "red")
    leasing.lease("l2", "blue")
    assert leasing.refill() == []


def test_an_actor_nobody_expects_is_killed() -> None:
    leasing = warmed(0)
    leasing.lease("l1", "red")
    leasing.lost("a1")
    assert leasing.started("a1") == [KillActor("a1")]


def test_too_many_waiting_leases_are_refused() -> None:
    leasing = Leasing(0, 1, 1, max_waiting=1)
    leasing.lease("l1", "red")
    with pytest.raises(Overloaded, match="1 connections wait"):
        leasing.lease("l2", "blue")
