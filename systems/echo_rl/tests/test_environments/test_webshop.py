"""The webshop-like task: its catalogue, its pages and the published reward."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from echo_core import ConfigError
from echo_rl.environments import environments, make_environment
from echo_rl.environments.shop_catalogue import SHOPS, Kind, Product, catalogue
from echo_rl.environments.webshop import WebShopConfig, WebShopEnvironment, Wish, purchase_reward

sys.path.insert(0, str(Path(__file__).parent))
from playing import episode, farmed, successes, trace

pytestmark = pytest.mark.needs("bm25s")


def test_the_seeds_snippet() -> None:
    env = WebShopEnvironment(WebShopConfig(website_type="electronics", budget_limit=1000.0))
    assert env.reset(0).startswith("Instruction: Buy a ")


def test_it_is_always_called_webshop_like() -> None:
    assert make_environment("webshop").name == "webshop-like" and "webshop-like" in environments() and "webshop" not in environments()


@pytest.mark.parametrize("shop", SHOPS)
def test_the_oracle_buys_what_is_wished_and_random_clicks_do_not(shop: str) -> None:
    task = make_environment("webshop-like", website_type=shop)
    assert successes(task, "oracle", 60) >= 0.95
    assert successes(task, "random", 60) <= 0.05
    assert trace(task, 9) == trace(make_environment("webshop-like", website_type=shop), 9)


def test_only_a_purchase_is_rewarded() -> None:
    task = make_environment("webshop-like", website_type="books")
    task.reset(0)
    for action in ("search[crime novel]", "search[]", "click[next]", "buy", "click[buy now]"):
        assert farmed(task, action) == 0
    assert sum(step.reward for step in episode(task, "oracle", 0)[:-1]) == 0


KIND = Kind("bluetooth speaker", "sound", ("a", "b", "c"), ("colour",), (1, 2))
OTHER = Kind("denim jeans", "trousers", ("a", "b", "c"), ("colour",), (1, 2))


def product(title: str, attributes: str = "ab", price: float = 10.0, kind: Kind = KIND) -> Product:
    return Product("p1", kind, title, frozenset(attributes), {"colour": ("red", "black")}, price)


@pytest.mark.parametrize(
    ("bought", "chosen", "reward"),
    [
        (product("Talu Iris bluetooth speaker for home"), {"colour": "red"}, 1.0),
        (product("Talu Iris bluetooth speaker for home"), {"colour": "black"}, 3 / 4),
        (product("Talu Iris bluetooth speaker for home"), {}, 3 / 4),
        (product("Osko Nova bluetooth speaker for sport", "a"), {"colour": "red"}, 3 / 4),
        (product("Talu Iris bluetooth speaker for home", "", 13.0), {}, 0.0),
        (product("Talu Wren denim jeans for sport", kind=OTHER), {"colour": "red"}, 0.5),  # one noun of five is the same: a share of 0.2
        (product("Talu Iris denim jeans for sport", kind=OTHER), {"colour": "red"}, 1.0),
        (product("Osko Wren denim jeans for sport", kind=OTHER), {"colour": "red"}, 0.0),
    ],
)
def test_the_published_reward(bought: Product, chosen: dict[str, str], reward: float) -> None:
    wish = Wish(product("Talu Iris bluetooth speaker for home"), frozenset("ab"), {"colour": "red"}, 12.0)
    assert purchase_reward(wish, bought, chosen) == pytest.approx(reward)


def test_a_shared_word_of_many_is_worth_a_tenth() -> None:
    long = Wish(product("one two three four five six seven eight nine ten eleven"), frozenset("ab"), {"colour": "red"}, 12.0)
    assert purchase_reward(long, product("one other denim jeans", kind=OTHER), {"colour": "red"}) == pytest.approx(0.1)


def test_pages_lead_where_they_say() -> None:
    task = make_environment("webshop-like", max_search_results=15)
    task.reset(2)
    results = task.step("Search[ Bluetooth  SPEAKER ]").observation
    assert "Page 1 of 2, 15 products found." in results and results.count("speaker for") == 10
    second = task.step("click[next]")
    assert second.observation.count(", ") and "[next]" not in second.observation and task.admissible is not None and "click[prev]" in task.admissible
    assert task.step("click[prev]").observation == results
    actions = task.admissible
    item = task.step(actions[0]).observation
    assert "[buy now]" in item and "*" not in item
    colour = next(action for action in task.admissible if action[6:-1] in ("black", "white", "grey", "navy", "red", "green", "teal", "beige"))
    assert f"{colour[5:]}*" in task.step(colour).observation
    assert "Features: " in task.step("click[features]").observation
    assert f"{colour[5:]}*" in task.step("click[prev]").observation
    assert task.step("click[prev]").observation == results
    assert task.step("search[monitor]").info["invalid"]  # a search begins at the start page
    assert "[search]" in task.step("click[back to search]").observation
    assert "0 products found" in task.step("search[xyzzy]").observation and task.admissible == ["click[back to search]"]


def test_no_observation_names_the_product_before_it_is_found() -> None:
    environment = WebShopEnvironment(WebShopConfig())
    for seed in range(30):
        first = environment.reset(seed)
        assert environment._wish is not None
        wanted = environment._wish.product
        assert wanted.id not in first and wanted.title not in first
        assert not any(wanted.id in action or wanted.title in action for action in environment.admissible)


def test_search_finds_by_words_and_in_the_order_of_bm25() -> None:
    environment = WebShopEnvironment(WebShopConfig())
    found = environment._shop.search("waterproof bluetooth speaker", 20)
    assert len(found) == 20 and sum(item.kind.noun == "bluetooth speaker" and "waterproof" in item.attributes for item in found) >= 15
    for item in environment._shop.products[::37]:
        assert environment._shop.search(item.title, 1) == [item]


def test_the_budget_bounds_the_shop_and_the_wishes() -> None:
    environment = WebShopEnvironment(WebShopConfig(budget_limit=40.0))
    assert max(item.price for item in environment._shop.products) <= 40
    for seed in range(30):
        environment.reset(seed)
        assert environment._wish is not None and environment._wish.product.price <= environment._wish.price <= 40
    with pytest.raises(ConfigError, match=r"costs at most budget_limit = 1 dollars; the cheapest product costs \d"):
        WebShopEnvironment(WebShopConfig(budget_limit=1.0))


def test_the_catalogue_is_the_same_everywhere() -> None:
    assert all(len({item.title for item in catalogue(shop)}) == len(catalogue(shop)) == 576 for shop in SHOPS)
    again: Any = catalogue.__wrapped__("books")
    assert again == catalogue("books") and np.isfinite([item.price for item in again]).all()
    values = [[value for values in item.options.values() for value in values] for shop in SHOPS for item in catalogue(shop)]
    assert all(len(set(found)) == len(found) for found in values)  # a click on a value has one meaning


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        ({"website_type": "groceries"}, "website_type must be one of 'electronics'"),
        ({"max_cart_items": 10}, "max_cart_items must be 1, because an episode ends"),
        ({"budget_limit": float("nan")}, "budget_limit must be a finite number"),
        ({"max_search_results": 0}, "max_search_results must be"),
        ({"action_space_size": 25}, "action_space_size must be None"),
    ],
)
def test_a_wrong_setting_is_named(options: dict[str, Any], fault: str) -> None:
    with pytest.raises(ConfigError, match=f"webshop-like: {fault}"):
        make_environment("webshop", **options)
