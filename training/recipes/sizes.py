"""The sizes a GR2 run comes in, and what each stage costs before it is run.

`tiny` learns from nothing on a CPU; `small` fine-tunes SmolLM2-135M with adapters; `8b` is the
paper's student, Qwen3-8B, explained to by a larger model behind a server, on a node of GPUs. Costs are foretold from
how many tokens a stage reads, learns and writes, at a speed that is stated with the machine. How many `tiny` learns a
second was measured, two runs side by side on two cores (about 10,500 each); how many it reads and writes is put in
proportion, and the speeds of the other sizes are estimates. The larger ones, whose prompts show histories, learn from
lists of validation, because mid-training has seen the answers of those of train. May import `rerank_env.rewards` and
`settings`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rerank_env.rewards.arguments import one_of
from rerank_env.training.recipes.settings import (
    SEEDED,
    Answering,
    Dapo,
    Gr2Settings,
    Ids,
    Internalise,
    ListsSettings,
    Memory,
    Midtrain,
    Model,
    Opd,
    Remarked,
    Sft,
    TeacherSettings,
    TracesSettings,
    Wording,
)


@dataclass(frozen=True)
class Speed:
    """Tokens a second that a machine learns (forward and backward), reads (forward) and writes, all rows together."""

    machine: str
    learned: float
    read: float
    written: float

    def slower(self, times: float) -> Speed:
        """That of a model for which everything takes so many times as long."""
        return Speed(self.machine, self.learned / times, self.read / times, self.written / times)


@dataclass(frozen=True)
class Size:
    """`settings`, the `speed` of their student, and how many tokens its prompts and its two kinds of answers have."""

    settings: Gr2Settings
    speed: Speed
    prompt: int
    answer: int
    direct: int


SIZES: Mapping[str, Size] = {
    "tiny": Size(
        Gr2Settings(
            lists=ListsSettings(watch=1000),
            rows=("sft-targeted", "sft-rejection", "opd", "dapo-naive", "dapo", "internalise"),
            model=Model(width=128, layers=4, heads=4, vocabulary=1024),
            midtrain=Midtrain(warmup_steps=50, steps=150, lr=1e-3, questions=200),
            remarks=Remarked(features="score_z,next_last,near_last_3,near_rate,text_max"),
            traces=TracesSettings(copies=5, batch=2048, temperature=0.5),
            sft=Sft(lr=2.5e-3, epochs=1, batch=32, micro_batch=32, save_every=400),
            teacher=TeacherSettings(lr=2e-3),
            opd=Opd(
                start="sft-targeted", teacher="sft-rejection", steps=60, learning_rate=1e-4, groups_per_step=16,
                group_size=4, micro_batch=64, max_tokens=96, validate_every=20, distill_weight=0.5, reward_weight=1.0,
            ),
            dapo=Dapo(steps=60, learning_rate=5e-5, micro_batch=128, max_tokens=96, validate_every=20),
            internalise=Internalise(steps=60, learning_rate=5e-5, max_tokens=32),
            answering=Answering(max_tokens=96),
        ),
        Speed("one of two busy CPU cores", learned=10_000, read=45_000, written=6_000),
        prompt=112,
        answer=62,
        direct=22,
    ),
    "small": Size(
        Gr2Settings(
            model=Model(base="HuggingFaceTB/SmolLM2-135M-Instruct", adapter=16),
            ids=Ids(text="all-MiniLM-L6-v2"),
            wording=Wording(template="evidence-steps", budget=6000),
            lists=ListsSettings(learn_from="validation"),
            midtrain=Midtrain(warmup_steps=200, steps=1000, batch=16, micro_batch=4, length=1024),
            teacher=TeacherSettings(base="HuggingFaceTB/SmolLM2-360M-Instruct", adapter=16, lr=1e-4),
            sft=Sft(lr=1e-4, batch=64, micro_batch=8),
            opd=Opd(start="midtrain", learning_rate=1e-5, micro_batch=8, max_tokens=256),
            dapo=Dapo(learning_rate=1e-5, groups_per_step=32, micro_batch=8, max_tokens=256),
            internalise=Internalise(learning_rate=1e-5, max_tokens=64),
            answering=Answering(max_tokens=256, batch=64),
        ),
        Speed("one GPU of 24 GB", learned=12_000, read=60_000, written=4_000),
        prompt=1100,
        answer=110,
        direct=34,
    ),
    "8b": Size(
        Gr2Settings(
            model=Model(base="Qwen/Qwen3-8B", adapter=32, dtype="bfloat16"),
            ids=Ids(text="all-MiniLM-L6-v2"),
            wording=Wording(template="evidence-steps", text_format="tagged-json", direct_format="json", budget=9000),
            lists=ListsSettings(learn_from="validation"),
            midtrain=Midtrain(warmup_steps=500, steps=4000, batch=64, micro_batch=1, length=2048),
            traces=TracesSettings(
                teacher="server", name="Qwen/Qwen3-32B", url="http://127.0.0.1:8000/v1", concurrency=64
            ),
            teacher=TeacherSettings(base="Qwen/Qwen3-32B", adapter=32, lr=1e-4),
            sft=Sft(lr=1e-4, batch=64, micro_batch=4),
            opd=Opd(
                learning_rate=1e-6, groups_per_step=64, group_size=8, micro_batch=4, max_tokens=512, form="topk",
                distill_weight=0.05, reward_weight=1.0,
            ),
            dapo=Dapo(steps=600, learning_rate=1e-5, groups_per_step=64, micro_batch=4, max_tokens=512),
            internalise=Internalise(steps=300, learning_rate=1e-5, max_tokens=128),
            answering=Answering(max_tokens=512, batch=64),
            memory=Memory(gradient_checkpointing=True),
        ),
        Speed("eight GPUs of 80 GB", learned=24_000, read=90_000, written=9_000),
        prompt=2000,
        answer=220,
        direct=60,
    ),
}  # fmt: skip
"""The sizes by name."""


def size_of(name: str) -> Size:
    """The size called `name`; `UnknownNameError` with the nearest name."""
    return SIZES[one_of("size", name, SIZES)]


def slowed(size: Size, settings: Gr2Settings) -> Speed:
    """The speed of the student that the settings have, see `foretold`."""
    model, own = settings.model, size.settings.model
    if model.base or own.base:
        return size.speed
    return size.speed.slower((model.width / own.width) ** 2 * model.layers / own.layers)


def foretold(size: Size, settings: Gr2Settings, *, learned_from: int, tested: int) -> dict[str, float]:
    """Minutes of every stage that costs any, by its name, for so many requests to learn from and to be tested on.

    What trees, IDs and lists take is left out: it is minutes at any size. A model from nothing of another width or
    depth than the size's own is as much slower as it is larger.
    """
    s, speed = settings, slowed(size, settings)
    traced = min(s.traces.most or learned_from, learned_from) * s.traces.copies
    seen = (size.prompt + size.answer) * (1 + s.sft.direct_share)
    answered = s.traces.teacher != "rule"
    asked = traced * (size.prompt / speed.read + size.answer / speed.written) if answered else 0.0
    sft = traced * s.sft.epochs * seen / speed.learned
    mid = s.midtrain.batch * s.midtrain.length * (s.midtrain.steps + s.midtrain.warmup_steps * (s.midtrain.steps > 0))
    larger = (s.teacher.width / s.model.width) ** 2 * s.teacher.layers / s.model.layers if not s.model.base else 3.0
    imitated = larger if s.opd.teacher == "teacher" else 1.0

    def reinforced(steps: int, groups: int, copies: int, answer: int) -> float:
        rollouts = steps * groups * copies
        written = rollouts * answer / speed.written + steps * groups * size.prompt / speed.read
        return written + rollouts * (size.prompt + answer) / speed.learned

    round_of = reinforced(s.dapo.steps, s.dapo.groups_per_step, s.dapo.group_size, size.answer) * len(s.seeds)
    second = reinforced(s.internalise.steps, s.dapo.groups_per_step, s.dapo.group_size, size.direct) * len(s.seeds)
    opd = reinforced(s.opd.steps, s.opd.groups_per_step, s.opd.group_size, size.answer)
    asked_of = sum(len(s.seeds) if row in SEEDED else 1 for row in s.rows)
    rows = 2 * tested * asked_of  # as they came, and shuffled
    seconds = {
        "midtrain": mid / speed.learned,
        "traces-targeted": asked,
        "traces-rejection": asked * (1 + s.traces.tries) / 2,
        "sft-targeted": sft,
        "sft-rejection": sft,
        "teacher": larger * (sft + mid / speed.learned),
        "opd": opd * (1 + imitated / 3),
        "dapo-naive": round_of,
        "dapo": round_of,
        "dapo-gain": round_of,
        "internalise": second,
        "evaluate": rows * (size.prompt / speed.read + size.answer / speed.written),
    }
    return {name: value / 60 for name, value in seconds.items()}
