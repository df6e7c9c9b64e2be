"""One prompt: what it says, and the lines that it is put together from.

May import `rerank_env.data`, `rerank_env.rewards` and the modules below.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from rerank_env.data.catalog import Catalog
from rerank_env.prompts.budget import Budget
from rerank_env.prompts.guard import cleaned
from rerank_env.prompts.items import LEVEL, SEPARATOR, ItemIds, labels_of, shortened
from rerank_env.prompts.template import Message, Template
from rerank_env.rewards.arrays import PAD


@dataclass(frozen=True)
class Prompt:
    """One request in words: a chat, and how much of the request was left out of it.

    `dropped` entries of the history are not there, `shortened` lines end in a mark; both 0 without a budget.
    """

    messages: tuple[Message, ...]
    dropped: int = 0
    shortened: int = 0

    @property
    def text(self) -> str:
        """The plain form: the contents of the messages with an empty line between them."""
        return "\n\n".join(content for _, content in self.messages)

    @property
    def chat(self) -> list[dict[str, str]]:
        """The chat form, as trainers and chat templates take it: role and content of each message."""
        return [message._asdict() for message in self.messages]

    @property
    def system(self) -> str:
        """What the system's message says, "" where there is none."""
        return next((content for role, content in self.messages if role == "system"), "")

    @property
    def user(self) -> str:
        """What the user's message says."""
        return self.messages[-1].content


class Item(NamedTuple):
    """An item as a line has it: the ID that comes first ("" for none), what is known of it, and the remark on it."""

    id: str
    text: str
    remark: str = ""

    def within(self, limit: int | None) -> str:
        """The item with at most `limit` characters of its text."""
        text = self.text if limit is None else shortened(self.text, limit)
        return SEPARATOR.join(part for part in (self.id, text, self.remark) if part)


class CatalogItems(dict[int, Item]):
    """The items of one catalogue as the lines of a template have them, each made when it is first asked for.

    Where there is a table of IDs, raises what it does for another catalogue, and `InputError` for an item without a
    usable ID.
    """

    def __init__(self, catalog: Catalog, template: Template, ids: ItemIds | None) -> None:
        super().__init__()
        if ids is not None:
            ids.check(catalog)
        self.catalog = catalog
        self._template = template
        self._ids = ids

    def __missing__(self, item: int) -> Item:
        template, guarded = self._template, self._template.guarded
        known = {"text": cleaned(self.catalog.texts[item], guarded=guarded) or template.untitled}
        if labels := labels_of(self.catalog):
            path = (cleaned(" ".join(label.split()), guarded=guarded) for label in labels[item])
            known["labels"] = LEVEL.join(filter(None, path))
        shown = [known[part] for part in template.shows if known.get(part)]
        self[item] = Item("" if self._ids is None else self._ids.of(item), SEPARATOR.join(shown))
        return self[item]

    def offered(self, candidates: Sequence[int], remarks: Sequence[str] | None) -> list[Item]:
        """The items with those numbers, up to the padding, each with the remark on it where there are any."""
        items = [self[item] for item in candidates if item != PAD]
        if remarks is None:
            return items
        return [self._remarked(item, remark) for item, remark in zip(items, remarks, strict=False)]

    def _remarked(self, item: Item, remark: str) -> Item:
        said = remark_of(remark, self._template)
        return (
            item._replace(remark=said) if said or item.id or item.text else item._replace(text=self._template.untitled)
        )


def remark_of(remark: str, template: Template) -> str:
    """A remark as it stands in a line of `template`: white space single, and guarded as the texts of items are."""
    return cleaned(" ".join(remark.split()), guarded=template.guarded)


def remark_chars(remarks: Sequence[str], template: Template) -> int:
    """An upper bound, in characters, on what remarks add to their lines."""
    longest = (max(len(remark_of(remark, template)), len(template.untitled)) for remark in remarks)
    return sum(len(SEPARATOR) + chars for chars in longest)


@dataclass(frozen=True, eq=False)
class Lines:
    """What one prompt is made of, before anything is left out."""

    template: Template
    text_format: str
    seen: Sequence[tuple[Item, float]]
    offered: Sequence[Item]

    def messages(self, dropped: int = 0, limit: int | None = None) -> tuple[Message, ...]:
        """The prompt without the oldest `dropped` entries of the history, texts cut to `limit` characters."""
        template = self.template
        seen = [template.seen.format(item=i.within(limit), feedback=f"{v:g}") for i, v in self.seen[dropped:]]
        offered = [template.offered.format(number=n, item=i.within(limit)) for n, i in enumerate(self.offered, start=1)]
        return template.messages(seen, offered, self.text_format, dropped=dropped)

    def items(self, dropped: int = 0) -> Iterator[Item]:
        """The items of all lines."""
        yield from self.offered
        yield from (item for item, _ in self.seen[dropped:])

    def prompt(self, budget: Budget | None) -> Prompt:
        """The prompt, cut to the budget where there is one. Raises `InputError` where that cannot be done."""
        if budget is None:
            return Prompt(self.messages())
        longest = max(len(item.text) for item in self.items())
        dropped, limit = budget.cut(self._filled, len(self.seen), longest)
        cut = 0 if limit is None else sum(len(item.text) > limit for item in self.items(dropped))
        return Prompt(self.messages(dropped, limit), dropped, cut)

    def check(self, budget: Budget) -> None:
        """Raise `InputError` where `prompt` would, for less work."""
        budget.check(self._filled, len(self.seen))

    def _filled(self, dropped: int, limit: int | None) -> str:
        return Prompt(self.messages(dropped, limit)).text
