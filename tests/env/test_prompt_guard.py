"""What no title can do: hold a sign, normalised or not, that means something, or say what nobody sees."""

from __future__ import annotations

import re
import unicodedata
from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rerank_env.data.requests import Requests
from rerank_env.prompts import TEMPLATES, PromptWriter, build_prompt
from rerank_env.prompts.guard import alphabet, cleaned

FORMS = ("NFC", "NFD", "NFKC", "NFKD")

EVERY = "".join(map(chr, range(0x110000)))

ASSIGNED = [character for character in EVERY if unicodedata.category(character) not in ("Cn", "Co")]
"""All that has a meaning; no normal form changes the others."""

INVISIBLE = (
    (0x00AD, 0x00AD), (0x034F, 0x034F), (0x061C, 0x061C), (0x115F, 0x1160), (0x17B4, 0x17B5), (0x180B, 0x180F),
    (0x200B, 0x200F), (0x202A, 0x202E), (0x2060, 0x206F), (0x3164, 0x3164), (0xFE00, 0xFE0F), (0xFEFF, 0xFEFF),
    (0xFFA0, 0xFFA0), (0xFFF0, 0xFFF8), (0x1BCA0, 0x1BCA3), (0x1D173, 0x1D17A), (0xE0000, 0xE0FFF),
)  # fmt: skip
"""Default_Ignorable_Code_Point of the Unicode character database, first and last of each range."""

UNSEEN = [chr(code) for first, last in INVISIBLE for code in range(first, last + 1)]

JOINERS = "\u200c\u200d"
SELECTORS = "\u180b\u180c\u180d\u180f\ufe0e\ufe0f"


def guarded(text: str) -> str:
    return cleaned(text, guarded=True)


def requests_with(titles: list[str]) -> Requests:
    return Requests.of([[*range(len(titles))]], [[0] * len(titles)], texts=titles)


def test_no_character_at_all_becomes_a_sign_in_any_normal_form() -> None:
    for between in (" ", "x"):
        text = guarded(between.join(ASSIGNED))
        assert len(text) > len(ASSIGNED)
        for form in FORMS:
            assert not set("<>|") & set(unicodedata.normalize(form, text))
    others = "".join(character for character in EVERY if unicodedata.category(character) in ("Cn", "Co"))
    assert all(unicodedata.is_normalized(form, others) for form in FORMS)


def test_signs_of_every_width_become_look_alikes() -> None:
    assert guarded("<|im_end|>") == "\u2039\u00a6im_end\u00a6\u203a"
    assert guarded("\uff1c\uff5cim_end\uff5c\uff1e") == "\u2039\u00a6im_end\u00a6\u203a"  # full width
    assert guarded("\ufe64/answer\ufe65") == "\u2039/answer\u203a"  # small forms
    assert guarded("\u226ethink\u226f") == "\u2039think\u203a"  # NFD splits these into a sign and a stroke
    for kept in ("\u2264 \u2265 \u00ab \u2016 \u3008 \u4e28", "Am\u00e9lie", "\ufb01n", "\uff21\uff22"):
        assert guarded(kept) == kept


@settings(max_examples=200, deadline=None)
@given(text=st.lists(st.one_of(st.characters(exclude_categories=()), st.sampled_from([*"<>| ", *UNSEEN])), max_size=12))
def test_cleaning_twice_is_cleaning_once_and_stays_in_its_alphabet(text: list[str]) -> None:
    once = guarded("".join(text))
    assert guarded(once) == once and len(once) <= len(text)
    assert set(once) <= set(alphabet("".join(text) + " ", guarded=True))


@pytest.mark.parametrize("name", [name for name, template in TEMPLATES.items() if template.guarded])
def test_a_title_of_nothing_that_is_drawn_is_said_to_be_no_text(name: str) -> None:
    titles = ["", " ", "\u2800", "\u115f\u1160", "\u3164", "\ufe0f", "\u200d\u200c", "".join(UNSEEN), "\u3164 \ufe0f"]
    requests = requests_with(titles)
    labels = tuple((title, "Film") for title in titles)
    ids = [f"<a_{item}>" for item in range(len(titles))] if name.startswith("3-id") else None
    for data, said in [
        (requests, "(no text)"),
        (replace(requests, catalog=replace(requests.catalog, labels=labels)), "(no text) | Film"),
    ]:
        text = PromptWriter(prompt=name, semantic_ids=ids).write(data)[0].text
        assert len(re.findall(rf"^(?:\d+\. |\* <a_\d> \| ){re.escape(said)}$", text, re.MULTILINE)) == len(titles)


def test_nothing_that_unicode_does_not_draw_is_left_but_what_scripts_and_emoji_need() -> None:
    for character in UNSEEN:
        kept = character if character in JOINERS + SELECTORS else ""
        assert guarded(f"a{character}b") == f"a{kept}b", hex(ord(character))
    assert guarded("a\U0001d159b") == "ab"  # the null notehead, which is drawn as nothing
    assert guarded("a\u2800\u2800b") == "a b"  # the Braille blank


def test_the_list_of_what_is_not_drawn_is_that_of_unicode() -> None:
    regex = pytest.importorskip("regex", reason="needs the regex package, which knows Unicode's properties")
    assert regex.findall(r"\p{Default_Ignorable_Code_Point}", EVERY) == UNSEEN


def test_emoji_and_scripts_that_need_invisible_characters_keep_them() -> None:
    for text in (
        "\u2764\ufe0f\u200d\U0001f525 on fire",  # heart, as an emoji, joined with fire
        "\U0001f469\u200d\U0001f469\u200d\U0001f467",  # a family
        "1\ufe0f\u20e3",  # a keycap
        "\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645",  # Persian
        "\u0d9a\u0dca\u200d\u0dc2",  # Sinhala
        "\u1820\u180b\u182e",  # Mongolian
        "\u2122\ufe0e",
    ):
        assert guarded(text) == text


@settings(max_examples=300, deadline=None)
@given(text=st.text(f"a\u00e9\u2764 {JOINERS}{SELECTORS}", max_size=25))
@example(text="a" + "\ufe0f\ufe0e" * 40)
@example(text="a" + "\u200c\u200d" * 40)
@example(text="a \u200d \ufe0f b")
def test_behind_a_drawn_character_stay_at_most_one_selector_and_one_joiner(text: str) -> None:
    kept = guarded(text)
    assert re.fullmatch(rf"(?:(?:[^ {JOINERS}{SELECTORS}][{SELECTORS}]?[{JOINERS}]?)+ ?)*(?<! )", kept)
    drawn = str.maketrans("", "", JOINERS + SELECTORS)
    assert kept.translate(drawn) == " ".join(text.translate(drawn).split())


def test_version_2_still_shows_titles_as_they_are() -> None:
    title = "\uff1c\uff5cim_end\uff5c\uff1e \u034f\ufe0f\ufe0f\u200d <b>"
    assert f"1. {title}\n" in build_prompt(requests_with([title, "a"]), 0, prompt="2")
