"""Training a first stage, on a log in which what follows is known: gradient, resuming, and who sees whom."""

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("sklearn", reason="needs the first-stage extra")

from rerank_env import durable  # noqa: E402
from rerank_env.data import SPLITS  # noqa: E402
from rerank_env.data.interactions import Interactions  # noqa: E402
from rerank_env.data.next_item import leave_one_out  # noqa: E402
from rerank_env.rewards.errors import CheckpointError, InputError, UnknownNameError  # noqa: E402
from rerank_env.training.first_stage import building  # noqa: E402
from rerank_env.training.first_stage.building import TargetPlaces, build, held_out_lists  # noqa: E402
from rerank_env.training.first_stage.full_softmax import BLOCK, full_softmax_loss  # noqa: E402
from rerank_env.training.first_stage.item_text import text_vectors  # noqa: E402
from rerank_env.training.first_stage.sasrec import Part, SasRecSettings, fit  # noqa: E402
from rerank_env.training.first_stage.settings import FirstStageSettings  # noqa: E402

pytestmark = pytest.mark.torch

SHAPE = {"width": 16, "heads": 2, "layers": 1, "text": 12, "dropout": 0.1}
ITEMS = 40


def walks(users: int = 120, length: int = 7, seed: int = 0) -> Interactions:
    """Users who walk around a ring of items: the next item is always the one after the last."""
    rng = np.random.default_rng(seed)
    starts = rng.integers(ITEMS, size=users)
    return Interactions.arranged(
        np.repeat(np.arange(users), length),
        ((starts[:, None] + np.arange(length)) % ITEMS).ravel(),
        np.ones(users * length),
        np.tile(np.arange(float(length)), users),
        texts=tuple(f"word{i} pair{i // 2}" for i in range(ITEMS)),
        content_IC=np.zeros((ITEMS, 0), dtype=np.float32),
        content_names=(),
        labels=tuple((f"label {i % 5}",) for i in range(ITEMS)),
        seed=1,
    )


def quick(**fields: object) -> SasRecSettings:
    given = {"epochs": 3, "sequences_per_step": 16, "warmup_steps": 3, "learning_rate": 1e-2, "shape": SHAPE}
    return SasRecSettings(**given | fields)


def part_of(log: Interactions, *, seed: int = 0, **fields: object) -> Part:
    return Part(log, leave_one_out(log).seen_N, quick(**fields), seed)


@pytest.mark.parametrize("count", [1, 7, BLOCK, BLOCK + 3])
def test_loss_and_gradients_are_those_of_cross_entropy(count: int) -> None:
    generator = torch.Generator().manual_seed(count)
    states = torch.randn(count, 6, generator=generator, requires_grad=True)
    items = torch.randn(30, 6, generator=generator, requires_grad=True)
    bias = torch.randn(30, generator=generator, requires_grad=True)
    targets = torch.randint(0, 30, (count,), generator=generator)
    (full_softmax_loss(states, items, bias, targets) * 3).backward()
    ours = [tensor.grad.clone() for tensor in (states, items, bias)]
    for tensor in (states, items, bias):
        tensor.grad = None
    expected = torch.nn.functional.cross_entropy(states @ items.T + bias, targets)
    (expected * 3).backward()
    assert full_softmax_loss(states, items, bias, targets).item() == pytest.approx(expected.item(), rel=1e-5)
    for gradient, tensor in zip(ours, (states, items, bias), strict=True):
        torch.testing.assert_close(gradient, tensor.grad, atol=1e-6, rtol=1e-4)


def test_text_vectors_keep_the_angles_of_the_words_where_there_is_room() -> None:
    # Twins have one direction, texts that share nothing are at right angles, and no text has none.
    vectors = text_vectors(["red nail", "red nail", "blue shoe", ""], [("x",), ("x",), ("y",), ()], 6)
    assert vectors.shape == (4, 6)
    assert vectors[0] == pytest.approx(vectors[1], abs=1e-6)
    assert abs(float(vectors[0] @ vectors[2])) < 1e-6
    assert np.linalg.norm(vectors, axis=1) == pytest.approx([1, 1, 1, 0], abs=1e-6)


def test_text_vectors_are_the_same_again_where_singular_values_are_equal() -> None:
    texts = [f"word{i} pair{i // 2}" for i in range(60)]
    np.testing.assert_array_equal(text_vectors(texts, (), 20), text_vectors(texts, (), 20))


def test_a_trained_model_knows_what_follows_for_users_it_never_saw(tmp_path: Path) -> None:
    model = fit(part_of(walks(), epochs=25), tmp_path)
    strange = walks(seed=9)
    targets = leave_one_out(strange)
    rows = targets.rows["test"]
    history, _ = strange.histories(targets.first_N[rows], rows, 10)
    assert (model.scores(history).argmax(axis=1) == strange.items_N[rows]).mean() > 0.9


def test_a_killed_training_goes_on_to_the_same_weights_and_the_same_log(tmp_path: Path) -> None:
    class KilledError(Exception):
        pass

    def kill(done: int, _: int) -> None:
        if done == 2:
            raise KilledError

    part = part_of(walks())
    whole = fit(part, tmp_path / "whole")
    with pytest.raises(KilledError):
        fit(part, tmp_path / "killed", on_epoch=kill)
    again = fit(part, tmp_path / "killed")
    for name, weights in whole.state_dict().items():
        assert torch.equal(weights, again.state_dict()[name]), name
    lines = [
        [json.loads(line) for line in (tmp_path / run / "metrics.jsonl").read_text().splitlines()]
        for run in ("whole", "killed")
    ]
    assert [(line["step"], line["loss"]) for line in lines[0]] == [(line["step"], line["loss"]) for line in lines[1]]


def test_a_trained_model_is_read_and_not_trained_again(tmp_path: Path) -> None:
    part = part_of(walks(), epochs=1)
    first = fit(part, tmp_path)
    epochs: list[int] = []
    second = fit(part, tmp_path, on_epoch=lambda done, _: epochs.append(done))
    assert epochs == []
    assert torch.equal(first.item_embedding, second.item_embedding)


def test_the_key_changes_with_all_that_decides_the_weights_and_with_nothing_else() -> None:
    log = walks()
    part = part_of(log)
    fewer = part.seen_N.copy()
    fewer[:7] = False
    others = [part_of(log, seed=1), part_of(log, epochs=4), part_of(log, shape=SHAPE | {"text": 0}),
              Part(log, fewer, part.settings, 0), part_of(walks(seed=2))]  # fmt: skip
    assert part.key == part_of(walks()).key
    assert len({part.key, *(other.key for other in others)}) == 6


def test_every_transition_of_a_long_sequence_is_in_one_piece() -> None:
    log = walks(users=3, length=30)
    part = Part(log, np.ones(len(log), dtype=bool), quick(shape=SHAPE | {"history": 7}), 0)
    pieces = part.sequences()
    assert max(map(len, pieces)) == 8
    found = sorted((int(a), int(b)) for piece in pieces for a, b in pairwise(piece))
    same = log.users_N[1:] == log.users_N[:-1]
    assert found == sorted(zip(log.items_N[:-1][same].tolist(), log.items_N[1:][same].tolist(), strict=True))


def test_a_log_without_anything_that_follows_is_refused(tmp_path: Path) -> None:
    log = walks(users=3)
    only_first = np.zeros(len(log), dtype=bool)
    only_first[::7] = True
    with pytest.raises(InputError, match="no user of the training split has two items"):
        fit(Part(log, only_first, quick(), 0), tmp_path)


def test_folds_part_the_users_and_each_model_sees_nothing_of_its_own() -> None:
    log = walks(users=23)
    settings = FirstStageSettings(folds=4, seed=3)
    folds_N, seen_N = settings.folds_N(log), leave_one_out(log).seen_N
    assert sorted(np.bincount(folds_N[::7]).tolist()) == [5, 6, 6, 6]
    seen = settings.seen(log, seen_N)
    assert list(seen) == ["main", "fold-0", "fold-1", "fold-2", "fold-3"]
    assert (seen["main"] == seen_N).all()
    for fold in range(4):
        mine_N = folds_N == fold
        assert not seen[f"fold-{fold}"][mine_N].any() and (seen[f"fold-{fold}"] == seen_N)[~mine_N].all()


def test_lists_ask_for_every_target_once_and_leave_out_what_the_user_has() -> None:
    log = walks(users=40)
    made = build(log, FirstStageSettings(first_stage="popularity", depth=8))
    targets = leave_one_out(log)
    for split in SPLITS:
        np.testing.assert_array_equal(made[split].rows_T, targets.rows[split])
        for row, items in zip(made[split].rows_T, made[split].items_TK, strict=True):
            assert not set(items) & set(log.items_N[targets.first_N[row] : row].tolist())
            assert len(set(items)) == 8


def test_cross_fitted_lists_agree_with_those_of_test_where_lists_of_the_trained_on_do_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Walks with random steps of 1 to 6: a model that learns train by heart knows the steps that its users took.
    monkeypatch.setenv("RERANK_CACHE", str(tmp_path))
    rng = np.random.default_rng(0)
    steps = np.concatenate([rng.integers(ITEMS, size=(100, 1)), rng.integers(1, 7, size=(100, 6))], axis=1)
    log = Interactions.arranged(
        np.repeat(np.arange(100), 7), (np.cumsum(steps, axis=1) % ITEMS).ravel(), np.ones(700),
        np.tile(np.arange(7.0), 100), texts=tuple(f"word{i}" for i in range(ITEMS)),
        content_IC=np.zeros((ITEMS, 0), dtype=np.float32), content_names=(), seed=0,
    )  # fmt: skip
    sasrec = quick(epochs=60, shape=SHAPE | {"text": 0, "dropout": 0.0})
    settings = FirstStageSettings(folds=2, depth=10, sasrec=sasrec)
    made = build(log, settings)
    targets = leave_one_out(log)
    model = fit(
        building.parts(log, settings)["main"], building.models_dir() / building.parts(log, settings)["main"].key
    )
    learned = building.lists_by(model, log, targets, targets.rows["train"], settings)
    on_top = {split: TargetPlaces.of(lists, log).on_top for split, lists in (made | {"learned": learned}).items()}
    assert on_top["learned"] > on_top["test"] + 0.2
    assert abs(on_top["train"] - on_top["test"]) < 0.1


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"epochs": 2},
        {"sequences_per_step": 7},
        {"learning_rate": 1e-4},
        {"warmup_steps": 9},
        {"weight_decay": 0.2},
        {"shape": {"width": 64, "text": 0}},
    ],
)
def test_every_process_trains_the_very_model_its_parent_waits_for(
    changed: dict, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, asked = walks(users=12), {}
    settings = FirstStageSettings(folds=3, seed=5, sasrec=SasRecSettings(**changed))
    monkeypatch.setattr(building, "run_all", lambda runs, folder, **_: asked.update(runs))
    building.train_parts("amazon-toys", log, settings, on_progress=lambda *_: None)
    assert len(asked) == 4
    for key, run in asked.items():
        told = dict(zip(run.command[-4::2], run.command[-3::2], strict=True))
        child = FirstStageSettings.of_dict(json.loads(told["--settings"]))
        assert building.parts(log, child)[told["--part"]].key == key
        assert run.steps == child.sasrec.epochs


def test_settings_that_are_not_the_defaults_have_a_variant_of_their_own() -> None:
    plain = FirstStageSettings(first_stage="bm25", seed=4)
    others = [FirstStageSettings(folds=2), FirstStageSettings(depth=9), FirstStageSettings(sasrec=quick())]
    assert plain.variant == "" and len({other.variant for other in others}) == 3
    assert all(len(other.variant) == 8 for other in others)
    assert FirstStageSettings.of_dict(json.loads(json.dumps(others[2].to_dict()))) == others[2]
    with pytest.raises(InputError, match="are no settings of a first stage"):
        FirstStageSettings.of_dict({"fold": 3})


def test_held_out_lists_are_those_of_the_whole_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RERANK_CACHE", str(tmp_path))
    log = walks(users=30)
    settings = FirstStageSettings(folds=2, depth=5, sasrec=quick(epochs=1))
    made, alone = build(log, settings), held_out_lists(log, settings)
    for split in SPLITS[1:]:
        np.testing.assert_array_equal(made[split].items_TK, alone[split].items_TK)
        np.testing.assert_array_equal(made[split].scores_TK, alone[split].scores_TK)


def test_places_of_targets_are_counted_by_hand() -> None:
    log = walks(users=2)
    rows = leave_one_out(log).rows["test"]
    target = log.items_N[rows]
    others = [i for i in range(ITEMS) if i not in target][:2]
    lists = building.CandidateLists(
        rows, np.array([[target[0], *others], [*others, target[1]]]), np.zeros((2, 3), dtype=np.float32)
    )
    places = TargetPlaces.of(lists, log)
    # Places 0 and 2: gains 1 and 1 / log2(4) = 0.5.
    assert (places.targets, places.recall, places.on_top) == (2, {1: 0.5}, 0.5)
    assert TargetPlaces.of(lists, log, slate_size=1).on_top == 1.0
    assert places.ndcg == {1: 0.5}


@pytest.mark.parametrize(
    ("fields", "error", "message"),
    [
        ({"first_stage": "sasrek"}, UnknownNameError, "did you mean 'sasrec'"),
        ({"folds": 1}, InputError, "folds is 1"),
        ({"split": "by_time"}, UnknownNameError, "by_time"),
    ],
)
def test_settings_that_make_no_lists_are_refused(fields: dict, error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        FirstStageSettings(**fields)


def test_more_folds_than_users_are_refused() -> None:
    with pytest.raises(InputError, match="folds is 4 but the log has 3 users"):
        FirstStageSettings().folds_N(walks(users=3))


def test_shares_on_top_that_chance_cannot_reconcile_are_named() -> None:
    def places(on_top: float, listed: int) -> TargetPlaces:
        return TargetPlaces(targets=listed, recall={}, ndcg={}, on_top=on_top, listed=listed)

    # Standard errors 0.01 and 0.01: 3 * sqrt(2) * 0.01 = 4.2 points.
    alike = {"train": places(0.5, 2500), "validation": places(0.54, 2500), "test": places(0.46, 2500)}
    assert building.disagreements(alike) == []
    found = building.disagreements(alike | {"test": places(0.45, 2500)})
    assert len(found) == 1 and "50.0% of the lists of train and 45.0% of those of test" in found[0]
    assert found[0].endswith("too much")


def test_a_damaged_model_is_trained_anew(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    part = part_of(walks(users=20), epochs=1)
    first = fit(part, tmp_path)
    weights = tmp_path / "model" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:100])
    again = fit(part, tmp_path)
    assert "it is trained anew" in caplog.text
    assert torch.equal(first.item_embedding, again.item_embedding)
    assert torch.equal(fit(part, tmp_path).item_embedding, again.item_embedding)


def test_a_model_that_another_process_trains_is_left_to_it(tmp_path: Path) -> None:
    with durable.held(tmp_path), pytest.raises(CheckpointError, match="in use by another run"):
        fit(part_of(walks(users=20), epochs=1), tmp_path)
