"""The registry and its choice of a worker."""

import random

import pytest

from turnwire.pipelines.messages import Endpoint, Model, Report, Worker
from turnwire.pipelines.protocol.errors import ModelNotFound, Overloaded
from turnwire.pipelines.routing import RoutingTable


def worker(id: str, *models: Model, max_ongoing: int = 2, draining: bool = False) -> Worker:
    served = models or (Model("smollm2", "tokens", aliases=("default",)),)
    return Worker(Endpoint(id, "n1"), "inference", served, max_ongoing, draining)


def table(*workers: Worker) -> RoutingTable:
    made = RoutingTable(random.Random(7))
    for each in workers:
        made.attach(each)
    return made


def test_a_name_and_an_alias_lead_to_the_same_worker() -> None:
    routes = table(worker("a"))
    by_name, by_alias = routes.resolve("smollm2"), routes.resolve("default")
    assert by_name == by_alias
    assert (by_name.model.name, by_name.worker.id) == ("smollm2", "a")


def test_a_name_wins_over_the_alias_of_another_model() -> None:
    both = worker("a", Model("x", "items", aliases=("y",)), Model("y", "items"))
    assert table(both).resolve("y").model.name == "y"


def test_an_unknown_name_is_refused_with_the_names_that_are_served() -> None:
    with pytest.raises(ModelNotFound, match="'gpt-9' is not served here; served: default, smollm2"):
        table(worker("a")).resolve("gpt-9")


def test_a_known_model_without_a_worker_is_overloaded_and_not_unknown() -> None:
    routes = table(worker("a"))
    routes.lost("a")
    with pytest.raises(Overloaded):
        routes.resolve("default")
    routes.know(["from-settings"])
    with pytest.raises(Overloaded):
        routes.resolve("from-settings")


def test_the_worker_in_use_is_kept_while_it_has_room() -> None:
    routes = table(worker("a", max_ongoing=4), worker("b", max_ongoing=4))
    routes.report(Report("b", 3, 0))
    assert [routes.resolve("smollm2", keep="b").worker.id for _ in range(20)] == ["b"] * 20
    routes.report(Report("b", 3, 1))
    assert routes.resolve("smollm2", keep="b").worker.id == "a"


def test_a_draining_worker_is_neither_kept_nor_chosen() -> None:
    routes = table(worker("a"), worker("b"))
    routes.attach(worker("a", draining=True))
    assert {routes.resolve("smollm2", keep="a").worker.id for _ in range(10)} == {"b"}
    assert not routes.usable("a")
    assert routes.usable("b")


def test_of_two_workers_the_freer_one_is_chosen() -> None:
    routes = table(worker("a", max_ongoing=8), worker("b", max_ongoing=8))
    routes.report(Report("a", 5, 0))
    assert routes.resolve("smollm2").worker.id == "b"


def test_a_burst_between_two_reports_spreads() -> None:
    routes = table(*(worker(id, max_ongoing=100) for id in "ab"))
    for _ in range(100):
        routes.resolve("smollm2")
    assert repr(routes) == "<RoutingTable v2 a=50/100 b=50/100>"


def test_when_all_workers_are_full_one_is_chosen_and_its_own_queue_decides() -> None:
    routes = table(worker("a"), worker("b"))
    for id in "ab":
        routes.report(Report(id, 2, 5))
    assert routes.resolve("smollm2", keep="a").worker.id in "ab"


def test_the_version_grows_only_when_the_registry_changes() -> None:
    routes = table(worker("a"))
    assert not routes.attach(worker("a"))
    routes.report(Report("a", 1, 0))
    routes.report(Report("nobody", 1, 0))
    assert not routes.lost("nobody")
    assert routes.registry().version == 1
    assert routes.attach(worker("a", draining=True))
    assert routes.lost("a")
    assert (routes.registry().version, routes.registry().workers) == (3, ())


def test_telling_something_new_keeps_the_load_that_is_known() -> None:
    routes = table(worker("a"))
    routes.report(Report("a", 1, 0))
    routes.attach(worker("a", draining=True))
    assert repr(routes) == "<RoutingTable v2 a=1/2 draining>"
