"""Rewards for verl 0.9: a `compute_score` that verl loads from a file, and the parquet rows it reads.

Nothing here imports verl; `to_verl` needs `datasets`. The dictionary that `compute_score` returns becomes verl's
`reward_extra_info`, and its keys are the same for every answer. One of them is a raw metric: group filtering (DAPO's
dynamic sampling) should look at that and not at the shaped reward, in which an all-wrong group can look alive.

    files = to_verl(rerank_env.load("movielens-100k"), "gain", "verl-data")
    print(shlex.join(files.overrides))  # arguments for python -m verl.trainer.main_ppo
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, Unpack

from rerank_env import durable
from rerank_env.data.requests import Requests
from rerank_env.prompts import Wording
from rerank_env.rewards.context import HINTS, check_met
from rerank_env.rewards.errors import InputError
from rerank_env.rewards.function import FunctionReward
from rerank_env.rewards.names import parse_reward
from rerank_env.rewards.parsing import MAX_CHARS
from rerank_env.rewards.rankings import Verdict
from rerank_env.rewards.reward import Reward
from rerank_env.rewards.scoring import Scorer
from rerank_env.training.adapters.records import LOGS, REMEDIES, check_columns, ids_of, request_rows, signals, slate_of

FUNCTION = "compute_score"
"""The name that verl looks for in the file."""

ABILITY = "reranking"

_MODULE = '''"""The reward of a verl run, written by rerank_env; verl loads {function} from this file."""

{imports}from rerank_env.training.adapters.verl import VerlReward

{function} = VerlReward({reward!r}, text_format={text_format!r}, metric={metric!r}, max_chars={max_chars!r})
'''


TAKEN = ("score", "verdict", "valid", "identity", "near_identity", "failed")
"""What else `VerlReward` returns, besides names with a slash in them."""


@dataclass(frozen=True)
class VerlReward:
    """A reward as verl calls it, one answer at a time.

    `reward`, `metric`: rewards or their texts, the second being the raw quality that filters look at. `text_format`:
    how answers are read; the prompts must ask for it. Raises `InputError` for a reward that needs the step, the group
    or the length in tokens, none of which verl tells a reward function.
    """

    reward: Reward | str
    text_format: str = "list"
    _: KW_ONLY
    metric: Reward | str = "ndcg@10"
    max_chars: int = MAX_CHARS

    def __post_init__(self) -> None:
        """Check the arguments."""
        self.scorer.check_needs(*LOGS, where="verl", remedies=REMEDIES)
        remedies = dict.fromkeys(HINTS, "name a metric of the ranking alone")
        check_met(self.quality.needs, frozenset(LOGS), f"as a raw metric, {self.quality}", remedies)
        if str(self.quality) in TAKEN:
            raise InputError(f"the raw metric {self.quality} has the name of something else verl is told; rename it")

    @cached_property
    def scorer(self) -> Scorer:
        """The path from text to numbers that every adapter takes."""
        return Scorer(self.reward, self.text_format, max_chars=self.max_chars)

    @cached_property
    def quality(self) -> Reward:
        """What the raw metric measures."""
        return parse_reward(self.metric)

    @cached_property
    def needs(self) -> frozenset[str]:
        """What the reward and the metric need besides rankings and relevance."""
        return self.scorer.needs | self.quality.needs

    def __call__(
        self,
        data_source: str,  # noqa: ARG002 - verl passes it by keyword
        solution_str: str,
        ground_truth: Sequence[float],
        extra_info: Mapping[str, Any] | None = None,
        **ignored: Any,  # noqa: ARG002 - and more where it runs a reward model
    ) -> dict[str, float | str]:
        """The score of one answer and what goes with it.

        `ground_truth` is the relevance in incoming order, `extra_info` the other columns of the row. Keys: `score`;
        the raw metric under its text, such as `ndcg@10`; `verdict` by name; and the numbers of `records.signals`.

        Raises `InputError` naming what is missing, `DataError` where lengths disagree.
        """
        row = {**(extra_info or {}), "relevance": ground_truth}
        slates = slate_of(row, text_format=self.text_format, needs=self.needs)
        ids = ids_of({name: [value] for name, value in row.items()}, 1)
        scored = self.scorer([solution_str], slates, ids=ids)
        metric_B = self.quality(scored.rankings_BK, slates, verdicts_B=scored.verdicts_B)
        return {
            "score": float(scored.total_B[0]),
            str(self.quality): float(metric_B[0]),
            "verdict": Verdict(int(scored.verdicts_B[0])).name.lower(),
            **{name: float(values_B[0]) for name, values_B in signals(scored, slates).items()},
        }


class VerlFiles(NamedTuple):
    """What `to_verl` wrote: the rows, None where there is no validation, the reward, and arguments that name them."""

    train: Path
    validation: Path | None
    reward: Path
    overrides: tuple[str, ...]


def to_verl(
    requests: Requests,
    reward: Reward | str,
    directory: str | Path,
    *,
    validation: Requests | None = None,
    text_format: str = "list",
    metric: Reward | str = "ndcg@10",
    max_chars: int = MAX_CHARS,
    imports: Sequence[str] = (),
    **wording: Unpack[Wording],
) -> VerlFiles:
    """Write `train.parquet`, `reward.py` and where given `validation.parquet` to `directory`, each whole or not at all.

    Rows hold `data_source` (the name of the requests), `prompt` (messages), `ability`, `reward_model` with
    `ground_truth` (the relevance), and `extra_info` (the other columns of `records`, and `index`). `wording`: `prompt`,
    `semantic_ids` and `prompt_budget`, as in `RerankEnv`; IDs are of one catalogue, that of both. The reward travels
    as text, because verl's workers are other processes: for rewards of your own, `imports` names the modules that
    register them. `overrides` are for verl's command line; `algorithm.filter_groups.enable` is left to you.

    Raises `InputError` for a reward whose text does not read back or needs what these requests do not have, and
    `CheckpointError` where a file cannot be written.
    """
    worth = VerlReward(_text(reward, imports), text_format, metric=_text(metric, imports), max_chars=max_chars)
    folder = Path(directory).absolute()
    train = _save_rows(requests, worth, folder / "train.parquet", wording)
    held_out = None if validation is None else _save_rows(validation, worth, folder / "validation.parquet", wording)
    module = folder / "reward.py"
    source = _MODULE.format(
        function=FUNCTION,
        imports="".join(f"import {name}\n" for name in imports),
        reward=worth.reward,
        text_format=text_format,
        metric=worth.metric,
        max_chars=max_chars,
    )
    durable.replace(module, source.encode("utf-8"))
    arguments = {
        "data.train_files": train,
        "data.val_files": held_out,
        "reward.custom_reward_function.path": module,
        "reward.custom_reward_function.name": FUNCTION,
        "algorithm.filter_groups.metric": worth.metric,
    }
    overrides = tuple(f"{key}={_quoted(value)}" for key, value in arguments.items() if value is not None)
    return VerlFiles(train, held_out, module, overrides)


def _save_rows(requests: Requests, worth: VerlReward, path: Path, wording: Wording) -> Path:
    from rerank_env.training.adapters import huggingface  # says which extra brings datasets, where it is missing

    columns = huggingface.columns_of(requests, **wording)
    check_columns(columns, worth.needs)

    from datasets import Dataset, Features, Value

    prompt, relevance = columns.pop("prompt"), columns.pop("relevance")
    types = Features(
        {
            "data_source": Value("string"),
            "prompt": prompt,
            "ability": Value("string"),
            "reward_model": {"style": Value("string"), "ground_truth": relevance},
            "extra_info": {"index": Value("int64"), **columns},
        }
    )
    rows = [
        {
            "data_source": row["data"],
            "prompt": row.pop("prompt"),
            "ability": ABILITY,
            "reward_model": {"style": "rule", "ground_truth": row.pop("relevance")},
            "extra_info": {"index": index, **row},
        }
        for index, row in enumerate(request_rows(requests, text_format=worth.text_format, **wording))
    ]
    return huggingface.save(Dataset.from_list(rows, features=types), path)


def _text(reward: Reward | str, imports: Sequence[str]) -> str:
    """The text of a reward, from which another process can make it."""
    for name in imports:
        if not all(part.isidentifier() for part in name.split(".")):
            raise InputError(f"imports holds {name!r}, which is no name of a module")
    read = parse_reward(reward)
    own = [
        node
        for node in read.walk()
        if not type(node).__module__.startswith("rerank_env.") or isinstance(node, FunctionReward)
    ]
    if own and not imports:
        raise InputError(
            f"{own[0]} is a reward of your own, which verl's processes do not know; register it in a module with "
            "register_reward, and name that module in imports"
        )
    if parse_reward(str(read)) != read:
        raise InputError(f"the text {str(read)!r} stands for another reward; register this one under its own name")
    return str(read)


def _quoted(value: object) -> str:
    """`value` as Hydra reads a text with any characters in it."""
    text = str(value).replace("\\", "\\\\").replace("'", "\\'")
    return f"'{text}'"
