"""The webshop-like task: search a shop, choose a product and its options, and buy it. The shop, its catalogue and its pages are ours.

Source of the reward: Yao et al., "WebShop: Towards Scalable Real-World Web Interaction with Grounded Language Agents", 2022. Figures of WebShop
itself cannot be compared with those of this task.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from echo_core import ConfigError
from echo_rl.checks import one_of, real, whole
from echo_rl.environments.shop_catalogue import SHOPS, Product, catalogue
from echo_rl.environments.task import Outcome, TaskConfig, TaskEnvironment, check_task, needs, only

__all__ = ["WebShopConfig", "WebShopEnvironment", "Wish", "purchase_reward"]

PAGE = 10
HOME, BACK, NEXT, PREV, FEATURES, BUY = "search", "back to search", "next", "prev", "features", "buy now"
ACTION = re.compile(r"\s*(search|click)\s*\[(.*)\]\s*", re.IGNORECASE | re.DOTALL)


@dataclass(frozen=True)
class WebShopConfig(TaskConfig):
    """The task.

    Attributes:
        website_type: what the shop sells: ``"electronics"``, ``"clothing"``, ``"books"`` or ``"furniture"``.
        max_search_results: how many products a search finds at most, 1 to 100. A page shows ten.
        max_cart_items: 1; an episode ends with the purchase of one product.
        budget_limit: dollars. Products that cost more are not in the shop, and no wish allows a higher price.
        action_space_size: None; actions are texts.
    """

    website_type: str = "electronics"
    max_search_results: int = 20
    max_cart_items: int = 1
    budget_limit: float = 1000.0
    action_space_size: None = None

    def __post_init__(self) -> None:
        check_task(
            "webshop-like",
            self,
            website_type=one_of(*SHOPS),
            max_search_results=whole(1, 100),
            max_cart_items=only(1, because="an episode ends with the purchase of one product"),
            budget_limit=real(above=0),
            action_space_size=only(None, because="actions are texts, such as click[buy now]"),
        )


@dataclass(frozen=True)
class Wish:
    """What is to be bought: a product like this one, with these attributes and options, for at most this price in dollars."""

    product: Product
    attributes: frozenset[str]
    options: Mapping[str, str]
    price: float

    def __str__(self) -> str:
        options = "".join(f", {name} {value}" for name, value in self.options.items())
        return (
            f"Buy a {self.product.kind.noun} that is or has: {', '.join(sorted(self.attributes))}{options}. The price must be at most {self.price:.2f} dollars."
        )


def purchase_reward(wish: Wish, bought: Product, chosen: Mapping[str, str]) -> float:
    """The published reward: r_type (n_att + n_opt + [price is low enough]) / (|att| + |opt| + 1).

    r_type is 0 if the titles share no noun, 0.1 below a share of 0.1, 0.5 up to a share of 0.2 if kind and category differ too, and otherwise 1.
    """
    share = len(wish.product.nouns & bought.nouns) / len(wish.product.nouns)
    alike = share > 0.2 or wish.product.kind.noun == bought.kind.noun or wish.product.kind.category == bought.kind.category
    kind = 0.0 if share == 0 else 0.1 if share < 0.1 else 1.0 if alike else 0.5
    attributes = len(wish.attributes & bought.attributes)
    options = sum(chosen.get(name) == value for name, value in wish.options.items())
    return kind * (attributes + options + (bought.price <= wish.price)) / (len(wish.attributes) + len(wish.options) + 1)


@dataclass
class _Page:
    """Where the customer is: at home, in the results of a search, at a product, or at its features."""

    kind: str = HOME
    found: list[Product] = field(default_factory=list)
    number: int = 0
    product: Product | None = None
    chosen: dict[str, str] = field(default_factory=dict)


class WebShopEnvironment(TaskEnvironment):
    """A customer with a wish. An action is ``search[words]`` or ``click[what the page shows in brackets]``; another one does nothing and takes
    a step.

    Only the purchase is rewarded, and it ends the episode. A success is a reward of 1: an alike product with all attributes and options, cheap enough.
    """

    name = "webshop-like"

    def __init__(self, config: WebShopConfig | None = None) -> None:
        config = config or WebShopConfig()
        super().__init__(config, 30)
        self._shop = _Shop.of(config.website_type, float(config.budget_limit))
        self._page = _Page()
        self._wish: Wish | None = None

    @property
    def admissible(self) -> list[str]:
        """All clicks of this page; at home, one search for each kind of product."""
        if self._page.kind == HOME:
            return [f"search[{noun}]" for noun in self._shop.nouns]
        return [f"click[{name}]" for name in self._clicks()]

    def solve(self) -> str:
        """The next action of an oracle that knows which product the wish was made from."""
        page, wish = self._page, self._wish
        assert wish is not None, "reset comes first"
        if page.kind == HOME:
            return f"search[{wish.product.title} {' '.join(sorted(wish.product.attributes))}]"
        if page.kind == "results":
            clicks = self._clicks()
            return f"click[{wish.product.id}]" if wish.product.id in clicks else f"click[{NEXT if NEXT in clicks else BACK}]"
        if page.product is not wish.product:
            return f"click[{BACK}]"
        missing = [value for name, value in wish.options.items() if page.chosen.get(name) != value]
        return f"click[{PREV}]" if page.kind == FEATURES else f"click[{missing[0] if missing else BUY}]"

    def _begin(self, seed: int) -> str:
        rng = np.random.default_rng(seed)
        product = self._shop.products[int(rng.integers(len(self._shop.products)))]
        attributes = sorted(product.attributes)
        wished = rng.choice(attributes, int(rng.integers(1, min(3, len(attributes)) + 1)), replace=False)
        options = {name: values[int(rng.integers(len(values)))] for name, values in product.options.items()}
        price = min(self.config.budget_limit, product.price * float(rng.uniform(1.0, 1.5)))
        self._wish = Wish(product, frozenset(map(str, wished)), options, max(product.price, round(price, 2)))
        self._page = _Page()
        return self._observation()

    def _act(self, action: Any) -> Outcome:
        read = ACTION.fullmatch(action) if isinstance(action, str) else None
        verb, name = (read[1].lower(), " ".join(read[2].lower().split())) if read else ("", "")
        page = self._page
        if verb == "search" and name and page.kind == HOME:
            self._page = _Page("results", self._shop.search(name, self.config.max_search_results))
        elif verb == "click" and name in self._clicks():
            if name == BUY and page.product is not None:
                assert self._wish is not None
                reward = purchase_reward(self._wish, page.product, page.chosen)
                return Outcome("You have bought it.", reward, True, reward, {"bought": page.product.id})
            self._click(name)
        else:
            return Outcome(self._observation("Nothing happens."), info={"invalid": True})
        return Outcome(self._observation())

    def _clicks(self) -> list[str]:
        """What can be clicked on this page."""
        page = self._page
        if page.kind == HOME:
            return []
        if page.kind == "results":
            turns = [NEXT] * ((page.number + 1) * PAGE < len(page.found)) + [PREV] * (page.number > 0)
            return [*(product.id for product in self._shown()), *turns, BACK]
        assert page.product is not None
        if page.kind == FEATURES:
            return [PREV, BACK]
        return [*(value for values in page.product.options.values() for value in values), FEATURES, BUY, *([PREV] if page.found else []), BACK]

    def _click(self, name: str) -> None:
        page = self._page
        if name == BACK:
            self._page = _Page()
        elif page.kind == FEATURES:
            page.kind = "product"
        elif page.kind == "product":
            if name == PREV:
                page.kind, page.product, page.chosen = "results", None, {}
            elif name == FEATURES:
                page.kind = FEATURES
            else:
                assert page.product is not None
                page.chosen[next(option for option, values in page.product.options.items() if name in values)] = name
        elif name in (NEXT, PREV):
            page.number += 1 if name == NEXT else -1
        else:
            page.kind, page.product = "product", next(product for product in self._shown() if product.id == name)

    def _shown(self) -> list[Product]:
        return self._page.found[self._page.number * PAGE :][:PAGE]

    def _observation(self, note: str = "") -> str:
        page, lines = self._page, [f"Instruction: {self._wish}"]
        if page.kind == HOME:
            lines.append("You are at the start page. [search]")
        elif page.kind == "results":
            lines.append(f"Page {page.number + 1} of {max(1, -(-len(page.found) // PAGE))}, {len(page.found)} products found.")
            lines += [f"[{product.id}] {product.title}, {product.price:.2f} dollars" for product in self._shown()]
            lines.append(" ".join(f"[{name}]" for name in self._clicks()[len(self._shown()) :]))
        elif page.product is not None:
            lines.append(f"{page.product.title}, {page.product.price:.2f} dollars")
            if page.kind == FEATURES:
                lines.append(f"Features: {', '.join(sorted(page.product.attributes))}")
            else:
                lines += [
                    f"{name}: {' '.join(f'[{v}]*' if page.chosen.get(name) == v else f'[{v}]' for v in values)}"
                    for name, values in page.product.options.items()
                ]
            lines.append(" ".join(f"[{name}]" for name in self._clicks() if page.kind == FEATURES or name in (FEATURES, BUY, PREV, BACK)))
        return "\n".join([*lines, note] if note else lines)


class _Shop:
    """The products that cost no more than the budget, and the index of their words."""

    def __init__(self, products: Iterable[Product]) -> None:
        bm25s = needs("webshop-like", "bm25s", lambda: importlib.import_module("bm25s"))
        self.products = list(products)
        self.nouns = list(dict.fromkeys(product.kind.noun for product in self.products))
        self._index: Any = bm25s.BM25()
        documents = [
            _words(f"{p.title} {' '.join(sorted(p.attributes))} {' '.join(v for values in p.options.values() for v in values)}") for p in self.products
        ]
        self._vocabulary = {word for document in documents for word in document}
        with _no_thread_for_bars():
            self._index.index(documents, show_progress=False)

    @classmethod
    @functools.cache
    def of(cls, shop: str, budget: float) -> _Shop:
        products = [product for product in catalogue(shop) if product.price <= budget]
        if not products:
            cheapest = min(product.price for product in catalogue(shop))
            raise ConfigError(
                f"webshop-like: nothing in the shop for {shop} costs at most budget_limit = {budget:g} dollars; the cheapest product costs {cheapest:.2f}"
            )
        return cls(products)

    def search(self, query: str, most: int) -> list[Product]:
        """The products that match best by BM25; those that share no word with the query are not found."""
        words = [word for word in _words(query) if word in self._vocabulary]
        if not words:
            return []
        scores = np.asarray(self._index.get_scores(words))
        order = np.argsort(-scores, kind="stable")[:most]
        return [self.products[number] for number in order if scores[number] > 0]


@contextlib.contextmanager
def _no_thread_for_bars() -> Iterator[None]:
    """Keep tqdm, which bm25s uses, from starting a thread. It does so even for bars that are not shown, and a process with threads must not fork actors."""
    bars = getattr(sys.modules.get("tqdm"), "tqdm", None)
    interval = getattr(bars, "monitor_interval", 0)
    try:
        if bars is not None:
            bars.monitor_interval = 0
        yield
    finally:
        if bars is not None:
            bars.monitor_interval = interval


def _words(text: str) -> list[str]:
    return re.findall(r"[a-z0-9]+", text.lower())
