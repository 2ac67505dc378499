"""The products of the webshop-like task: made from word lists of our own by a fixed seed, so that every process has the same shop."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np

__all__ = ["SHOPS", "Kind", "Product", "catalogue"]


def _listed(words: str, between: str = " ") -> tuple[str, ...]:
    return tuple(words.split(between))


OF_EACH_KIND = 48
BRANDS = _listed(
    "Norvik Talu Quenby Ardent Mirelle Osko Fennwick"
    " Halden Lumera Brixo Cassel Deveron Elmwood Farrow Galt Hyrst Ixora Jovan Kestrel Larkin Merrow Nettle Orla Pryce"
)
SERIES = _listed("Aero Bolt Crest Drift Ember Flint Glide Haven Iris Jade Karst Lyra Metro Nova Onyx Pulse Quill Ridge Sable Terra Umber Vale Wren Zephyr")
COLOURS = ("black", "white", "grey", "navy", "red", "green", "teal", "beige")
OPTIONS = {
    "colour": COLOURS,
    "size": ("x-small", "small", "medium", "large", "x-large"),
    "pack": ("1 piece", "2 pieces", "4 pieces", "10 pieces"),
    "cable": ("0.5 m", "1 m", "2 m", "3 m"),
    "storage": ("64 gb", "128 gb", "256 gb", "512 gb"),
    "fit": ("slim", "regular", "relaxed"),
    "format": ("hardcover", "paperback", "large print", "audio disc"),
    "language": ("english", "french", "german", "spanish"),
    "finish": ("oak", "walnut", "pine", "ash", "painted"),
    "width": ("60 cm", "80 cm", "100 cm", "120 cm"),
}


@dataclass(frozen=True)
class Kind:
    """A kind of product.

    Attributes:
        noun: its name, such as ``"bluetooth speaker"``.
        category: the shelf that it shares with other kinds.
        attributes: what products of this kind may be or have.
        options: what is chosen at a purchase, by name.
        prices: the lowest and the highest price in dollars.
    """

    noun: str
    category: str
    attributes: tuple[str, ...]
    options: tuple[str, ...]
    prices: tuple[int, int]


@dataclass(frozen=True)
class Product:
    """A product of the shop. ``options`` gives the values that each option can have."""

    id: str
    kind: Kind
    title: str
    attributes: frozenset[str]
    options: dict[str, tuple[str, ...]]
    price: float

    @property
    def nouns(self) -> frozenset[str]:
        """The words of the title: brand, series, kind and use."""
        return frozenset(self.title.lower().split()) - {"for", "the"}


def _kinds(category: str, nouns: str, attributes: str, options: str, low: int, high: int) -> list[Kind]:
    return [Kind(noun, category, _listed(attributes, ", "), _listed(options, ", "), (low, high)) for noun in _listed(nouns, ", ")]


SOUND = "noise cancelling, waterproof, fast charging, voice assistant, long battery, foldable, deep bass, low latency"
SCREEN = "high resolution, anti glare, touch control, energy saving, wall mountable, wide angle, slim bezel, adjustable stand"
PARTS = "gold plated, braided, tangle free, fast charging, shock proof, magnetic, lightweight, universal fit"
CLOTH = "machine washable, organic cotton, quick drying, breathable, stretchable, wrinkle free, hand made, moisture wicking"
WARM = "water resistant, wind proof, fleece lined, recycled material, reflective, insulated, hooded, lightweight"
STORY = "award winning, illustrated, unabridged, signed copy, new edition, annotated, gift boxed, first in series"
STUDY = "with exercises, with solutions, beginner level, advanced level, spiral bound, colour printed, peer reviewed, pocket sized"
WOOD = "solid wood, easy assembly, scratch resistant, stackable, space saving, height adjustable, soft close, hand finished"
SOFT = "memory foam, stain resistant, removable cover, machine washable, hypoallergenic, reversible, quilted, non slip"
#: What each shop sells.
SHOPS: dict[str, tuple[Kind, ...]] = {
    "electronics": (
        *_kinds("sound", "bluetooth speaker, wireless headphones, sound bar, alarm radio", SOUND, "colour", 20, 300),
        *_kinds("screens", "computer monitor, drawing tablet, photo frame, video projector", SCREEN, "colour, storage", 60, 900),
        *_kinds("accessories", "charging cable, phone case, laptop stand, power bank", PARTS, "colour, cable", 5, 90),
    ),
    "clothing": (
        *_kinds("shirts", "dress shirt, polo shirt, tank top, linen blouse", CLOTH, "colour, size", 12, 120),
        *_kinds("trousers", "denim jeans, jogging pants, pleated skirt, cargo shorts", CLOTH, "colour, size, fit", 15, 150),
        *_kinds("outerwear", "rain jacket, winter coat, running vest, knitted cardigan", WARM, "colour, size", 30, 400),
    ),
    "books": (
        *_kinds("stories", "crime novel, fantasy saga, short stories, travel memoir", STORY, "format, language", 6, 60),
        *_kinds("textbooks", "algebra textbook, chemistry workbook, grammar guide, statistics primer", STUDY, "format, language", 15, 180),
        *_kinds("hobby", "bread cookbook, garden almanac, chess manual, bird atlas", STORY, "format", 8, 70),
    ),
    "furniture": (
        *_kinds("tables", "writing desk, coffee table, kitchen trolley, bedside cabinet", WOOD, "finish, width", 40, 700),
        *_kinds("storage", "book shelf, shoe rack, coat stand, tool chest", WOOD, "finish", 25, 400),
        *_kinds("textiles", "seat cushion, floor rug, winter duvet, window curtain", SOFT, "colour, pack", 10, 200),
    ),
}
USES = _listed("travel home office family sport school guests weekends beginners gifts")


@functools.cache
def catalogue(shop: str) -> tuple[Product, ...]:
    """All products of a shop, in the order of their ids."""
    rng = np.random.default_rng([20, *shop.encode()])
    products: list[Product] = []
    titles: set[str] = set()
    for kind in SHOPS[shop]:
        for _ in range(OF_EACH_KIND):
            title = ""
            while not title or title in titles:
                title = f"{rng.choice(BRANDS)} {rng.choice(SERIES)} {kind.noun} for {rng.choice(USES)}"
            titles.add(title)
            attributes = frozenset(map(str, rng.choice(kind.attributes, int(rng.integers(2, 6)), replace=False)))
            options = {}
            for name in kind.options:
                values = OPTIONS[name]
                chosen = set(map(str, rng.choice(values, int(rng.integers(2, len(values) + 1)), replace=False)))
                options[name] = tuple(value for value in values if value in chosen)
            low, high = kind.prices
            price = round(low * (high / low) ** float(rng.random()), 2)
            products.append(Product(f"p{len(products):04d}", kind, title, attributes, options, price))
    return tuple(products)
