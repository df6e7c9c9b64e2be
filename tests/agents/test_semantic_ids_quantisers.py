"""RQ-k-means and RQ-VAE: what they compute, what each technique does, and that they come back from disk."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("sklearn")
pytestmark = pytest.mark.torch

from rerank_env.agents import pretrained  # noqa: E402
from rerank_env.agents.semantic_ids.assignment import assigned  # noqa: E402
from rerank_env.agents.semantic_ids.clustering import centres, nearest  # noqa: E402
from rerank_env.agents.semantic_ids.coder import CoderSettings, ItemCoder, build  # noqa: E402
from rerank_env.agents.semantic_ids.quality import relative_error  # noqa: E402
from rerank_env.agents.semantic_ids.rq_kmeans import RqKMeans  # noqa: E402
from rerank_env.agents.semantic_ids.rq_vae import Quantised, RqVae, RqVaeConfig  # noqa: E402
from rerank_env.agents.semantic_ids.rq_vae_training import (  # noqa: E402
    EpochLog,
    _move_codes,
    _Positives,
    contrastive,
    diversity,
    fit,
)
from rerank_env.data.interactions import Interactions  # noqa: E402
from rerank_env.rewards.errors import CheckpointError, InputError, MissingExtraError, UnknownNameError  # noqa: E402

SMALL = RqVaeConfig(
    levels=3, codes=8, latent=4, hidden=(16,), epochs=12, batch=32, contrastive=0.0, ema=0.9, learning_rate=5e-3
)


def clustered(items: int = 200, width: int = 12) -> np.ndarray:
    """Items around eight far centres, four near ones around each."""
    rng = np.random.default_rng(0)
    far, near = rng.normal(size=(8, width)) * 3, rng.normal(size=(4, width))
    rows = far[rng.integers(0, 8, items)] + near[rng.integers(0, 4, items)] + rng.normal(size=(items, width)) * 0.05
    return rows.astype(np.float32)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_points_go_to_the_nearest_centre_and_fewer_points_are_their_own() -> None:
    points = np.array([[0, 0], [0.4, 0], [5, 5], [0, 0]], dtype=np.float32)
    found = centres(points, 8, rng=np.random.default_rng(0))
    assert sorted(map(tuple, found.tolist())) == sorted({tuple(point) for point in points.tolist()})
    assert nearest(points, np.array([[5, 5], [0, 0], [0, 0]], dtype=np.float32)).tolist() == [1, 1, 0, 1]
    assert nearest(points[:0], found).shape == (0,)


def test_residual_clustering_codes_what_the_levels_before_left_over() -> None:
    rows = clustered()
    found = RqKMeans.fit(rows, rng=np.random.default_rng(0), sizes=(8, 4, 16), random_levels=1)
    codes = found.codes(rows)
    first, second = found.centres
    left = rows[:, None] - first[None]
    plain_first = (left**2).sum(axis=2).argmin(axis=1)
    residual = rows - first[plain_first]
    assert (codes[:, 0] == plain_first).all()
    assert (codes[:, 1] == ((residual[:, None] - second[None]) ** 2).sum(axis=2).argmin(axis=1)).all()
    assert found.reconstructed(rows) == pytest.approx(first[codes[:, 0]] + second[codes[:, 1]], abs=1e-5)
    assert relative_error(rows, found.reconstructed(rows)) < relative_error(rows, first[codes[:, 0]]) < 0.2
    # The same rng gives the same; equal rows get equal codes.
    again = RqKMeans.fit(rows, rng=np.random.default_rng(0), sizes=(8, 4, 16))
    assert (again.codes(rows) == codes).all()
    assert (found.codes(np.repeat(rows[:3], 2, axis=0)) == np.repeat(codes[:3], 2, axis=0)).all()


def test_clustering_a_tiny_catalogue_of_twins_uses_as_many_codes_as_it_needs(tmp_path: Path) -> None:
    rows = np.array([[1, 0], [1, 0], [0, 1]], dtype=np.float32)
    found = RqKMeans.fit(rows, rng=np.random.default_rng(0))
    assert [len(part) for part in found.centres] == [2, 1, 1]
    assert found.reconstructed(rows) == pytest.approx(rows)
    ids = assigned(found.codes(rows), found.sizes, texts=["a", "a", "b"], rng=np.random.default_rng(0))
    assert ids.uniqueness_L().tolist() == [2 / 3, 2 / 3, 2 / 3, 1.0]
    found.save_pretrained(tmp_path)
    again = RqKMeans.from_pretrained(tmp_path)
    assert (again.codes(rows) == found.codes(rows)).all() and again.sizes == found.sizes
    pretrained.write(tmp_path, "rq-kmeans", {"sizes": [2]}, {"centres.1": torch.zeros(2, 2)})
    with pytest.raises(CheckpointError, match="do not belong together"):
        RqKMeans.from_pretrained(tmp_path)


@pytest.mark.parametrize("method", ["rq-vae", "rq-kmeans"])
def test_rows_of_another_width_are_refused(method: str) -> None:
    rows = clustered(40)
    model = (
        fit(rows, SMALL, generator=seeded()) if method == "rq-vae" else RqKMeans.fit(rows, rng=np.random.default_rng(0))
    )
    with pytest.raises(InputError, match=r"the rows have shape \(40, 11\)"):
        model.codes(rows[:, 1:])


def test_an_rq_vae_learns_and_codes_items_it_never_saw() -> None:
    rows = clustered(300)
    logged: list[EpochLog] = []
    model = fit(rows[:200], SMALL, generator=seeded(), progress=logged.append)
    assert [log.epoch for log in logged] == list(range(1, 13))
    assert model.codes(rows).shape == (300, 2)
    assert relative_error(rows[:200], model.reconstructed(rows[:200])) < 0.35
    assert relative_error(rows[200:], model.reconstructed(rows[200:])) < 0.4
    assert not any(weight.requires_grad for weight in model.parameters())


def test_an_rq_vae_begins_as_the_principal_directions_of_its_inputs() -> None:
    rows = clustered(60)
    model = fit(rows, replace(SMALL, learning_rate=1e-12, weight_decay=0.0, ema=0.0, epochs=1), generator=seeded())
    centred = (rows - rows.mean(axis=0)) / (rows - rows.mean(axis=0)).std()
    _, _, directions = np.linalg.svd(centred.astype(np.float64), full_matrices=False)
    latent = model.encoder(model.standard(torch.from_numpy(rows))).numpy()
    assert np.abs(latent) == pytest.approx(np.abs(centred @ directions[:4].T), abs=1e-4)
    assert model.decoder(torch.from_numpy(latent)).numpy() == pytest.approx(
        centred @ directions[:4].T @ directions[:4], abs=1e-4
    )
    # With more numbers in the middle than in the input, the rest begin as nothing.
    wide = fit(rows[:, :3], replace(SMALL, learning_rate=1e-12, epochs=1), generator=seeded())
    assert wide.encoder(wide.standard(torch.from_numpy(rows[:, :3])))[:, 3].abs().max() < 1e-6


def test_the_codes_are_nearest_vectors_of_what_is_left_over() -> None:
    model = RqVae(SMALL, 12, generator=seeded())
    latent = torch.randn(50, 4, generator=seeded(1))
    found = model.quantise(latent)
    left = latent.clone()
    for level, codebook in enumerate(model.codebooks_MCZ):
        assert torch.allclose(found.residuals_MBZ[level], left)
        codes = torch.cdist(left, codebook).argmin(dim=1)
        assert torch.equal(found.codes_BM[:, level], codes)
        left = left - codebook[codes]
    assert torch.allclose(found.sum_BZ, latent - left, atol=1e-6)


def test_the_same_generator_gives_the_same_rq_vae_and_torch_is_left_alone() -> None:
    rows, before = clustered(80), torch.random.get_rng_state()
    pairs = np.random.default_rng(0).integers(0, 80, size=(50, 2))
    config = replace(SMALL, contrastive=0.1, diversity=0.01, dead_after=3, epochs=4)
    one, same, other = (fit(rows, config, generator=seeded(seed), pairs_P2=pairs) for seed in (0, 0, 1))
    assert all(torch.equal(a, b) for a, b in zip(one.state_dict().values(), same.state_dict().values(), strict=True))
    assert not torch.equal(one.codebooks_MCZ, other.codebooks_MCZ)
    assert torch.equal(torch.random.get_rng_state(), before)


def quantised(codes: list[int], residuals: list[list[float]], codebook: torch.Tensor) -> Quantised:
    codes_B, residuals_BZ = torch.tensor(codes), torch.tensor(residuals, dtype=torch.float32)
    return Quantised(codes_B[:, None], residuals_BZ[None], codebook[codes_B][None], codebook[codes_B])


def one_level(**changes: object) -> RqVae:
    settings = {"levels": 2, "codes": 3, "latent": 2, "hidden": (), "contrastive": 0.0} | changes
    model = RqVae(RqVaeConfig(**settings), 2, generator=seeded())  # type: ignore[arg-type]
    with torch.no_grad():
        model.codebooks_MCZ.copy_(torch.tensor([[[0.0, 0], [10, 10], [-10, 0]]]))
    return model


def test_moving_average_codes_follow_the_mean_of_what_is_assigned_to_them() -> None:
    model, idle = one_level(ema=0.9), torch.zeros(1, 3, dtype=torch.long)
    # Code 0 gets (1, 0) and (0, 3): mean (0.5, 1.5), a tenth of the way. Code 1 gets (20, 0). Code 2 nothing.
    _move_codes(model, quantised([0, 0, 1], [[1, 0], [0, 3], [20, 0]], model.codebooks_MCZ[0]), torch.zeros(3), idle)
    assert model.codebooks_MCZ[0].tolist() == [
        [pytest.approx(0.05), pytest.approx(0.15)], [pytest.approx(11), pytest.approx(9)], [-10, 0]
    ]  # fmt: skip
    assert idle.tolist() == [[0, 0, 1]]
    assert not model.codebooks_MCZ.requires_grad and one_level(ema=0.0).codebooks_MCZ.requires_grad


def test_a_dead_code_moves_to_what_is_left_of_the_item_reconstructed_worst() -> None:
    model, idle = one_level(ema=0.0, dead_after=2), torch.tensor([[0, 0, 1]])
    errors = torch.tensor([0.1, 0.9, 0.5])
    batch = quantised([0, 0, 1], [[1, 0], [0, 3], [20, 0]], model.codebooks_MCZ[0])
    assert _move_codes(model, batch, errors, idle) == 1
    assert model.codebooks_MCZ[0].tolist() == [[0, 0], [10, 10], [0, 3]]
    assert idle.tolist() == [[0, 0, 0]]
    assert _move_codes(model, batch, errors, idle) == 0  # idle for one batch only


def test_the_diversity_loss_is_one_where_codes_are_equally_near_and_grows_with_collapse() -> None:
    ring = torch.tensor([[[1.0, 0], [0, 1], [-1, 0], [0, -1]]])
    centre = quantised([0], [[0.0, 0.0]], ring[0])
    assert diversity(centre, ring).item() == pytest.approx(1.0)
    # At (1/2, 0) the squared distances are 1/4, 5/4, 9/4, 5/4; the nearest is the unit, so softmax of -1, -5, -9, -5.
    weights = np.exp([-1.0, -5, -9, -5])
    share = weights / weights.sum()
    assert diversity(quantised([0], [[0.5, 0.0]], ring[0]), ring).item() == pytest.approx(4 * (share**2).sum())
    spread = quantised([0, 2], [[0.5, 0.0], [-0.5, 0.0]], ring[0])
    assert diversity(spread, ring).item() < 4 * (share**2).sum()


def test_the_contrastive_loss_is_the_cross_entropy_of_finding_the_partner() -> None:
    here, there = torch.tensor([[2.0, 0], [0, 3]]), torch.tensor([[1.0, 1], [0, 5]])
    items, partners = torch.tensor([0, 1]), torch.tensor([2, 3])
    # Cosines over T = 0.5: item 0 with its partner √2, with the other's 0; item 1 with its partner 2, the other √2.
    half = 2 / np.sqrt(2)
    expected = -(np.log(np.exp(half) / (np.exp(half) + 1)) + np.log(np.exp(2) / (np.exp(2) + np.exp(half)))) / 2
    assert contrastive(here, there, items, partners, 0.5).item() == pytest.approx(expected, rel=1e-5)
    # Where both have the same partner, or one is the other's partner, there is nothing to tell apart.
    assert contrastive(here, there, items, torch.tensor([2, 2]), 0.5).item() == 0.0
    assert contrastive(here, there, items, torch.tensor([1, 0]), 0.5).item() == 0.0


def test_partners_are_drawn_as_often_as_they_were_bought_together() -> None:
    positives = _Positives([[0, 1], [0, 1], [2, 0]], 4, "cpu")
    partners, has = positives.drawn(torch.tensor([0] * 3000 + [1, 2, 3]), seeded())
    assert has.tolist() == [True] * 3002 + [False]
    assert partners[3000:3002].tolist() == [0, 0]
    drawn = torch.bincount(partners[:3000], minlength=4).tolist()
    assert drawn[0] == drawn[3] == 0 and drawn[1] + drawn[2] == 3000
    assert abs(drawn[1] - 2000) < 4 * np.sqrt(3000 * 2 / 9)
    for pairs, sentence in ((None, r"pairs of shape \(0, 2\)"), ([[0, 4]], "from 0 to 4, but there are 0..3")):
        with pytest.raises(InputError, match=sentence):
            _Positives(pairs, 4, "cpu")


def test_items_bought_together_come_to_share_codes() -> None:
    rows = np.random.default_rng(0).normal(size=(64, 12)).astype(np.float32)
    pairs = np.arange(64).reshape(32, 2)
    shares = []
    for weight in (0.0, 2.0):
        config = replace(SMALL, contrastive=weight, epochs=40, batch=32)
        codes = fit(rows, config, generator=seeded(), pairs_P2=pairs).codes(rows)[:, 0]
        shares.append((codes[::2] == codes[1::2]).mean())
    assert shares[1] > shares[0] + 0.3


def test_a_saved_rq_vae_comes_back_and_damaged_ones_are_refused(tmp_path: Path) -> None:
    rows = clustered(50)
    model = fit(rows, SMALL, generator=seeded())
    model.save_pretrained(tmp_path)
    again = RqVae.from_pretrained(tmp_path)
    assert again.config == SMALL
    assert (again.codes(rows) == model.codes(rows)).all()
    assert (again.reconstructed(rows) == model.reconstructed(rows)).all()
    config, weights = pretrained.read(tmp_path, "rq-vae")
    for changed, kept, sentence in (
        (config | {"levels": 1}, weights, "leave at least one that means something"),
        (config | {"codes": 9}, weights, "tensor codebooks_MCZ"),
        (config, {name: weights[name] for name in weights if name != "mean_D"}, "no mean of the inputs"),
    ):
        pretrained.write(tmp_path, "rq-vae", changed, kept)
        with pytest.raises(CheckpointError, match=sentence):
            RqVae.from_pretrained(tmp_path)


@pytest.mark.parametrize(
    ("setting", "sentence"),
    [
        ({"levels": 0}, "levels is 0"), ({"random_levels": 4}, "leave at least one"), ({"ema": 1.0}, "ema must be"),
        ({"hidden": (0,)}, "a hidden layer is 0"), ({"diversity": -1.0}, "diversity is -1.0"),
        ({"kmeans_init": 1}, "give True or False"),
        ({"temperature": 0}, "above 0"), ({"codes": 2.5}, "codes is 2.5"),
    ],
)  # fmt: skip
def test_settings_that_cannot_be_are_refused(setting: dict[str, object], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        RqVaeConfig(**setting)  # type: ignore[arg-type]


def test_embeddings_that_teach_nothing_are_refused() -> None:
    for rows in (np.ones((5, 3)), np.full((5, 3), np.nan), np.ones(5)):
        with pytest.raises(InputError, match="give finite rows, at least two of them different"):
            fit(rows.astype(np.float32), SMALL, generator=seeded())
    with pytest.raises(InputError, match="set contrastive=0"):
        fit(clustered(20), replace(SMALL, contrastive=0.1), generator=seeded())


def shop() -> Interactions:
    """Forty users buy six of thirty items, whose texts share words."""
    rng = np.random.default_rng(0)
    items = np.concatenate([rng.permutation(30)[:6] for _ in range(40)])
    kinds = ("red polish", "blue polish", "fishing rod", "garden tool", "toy car")
    return Interactions(
        np.repeat(np.arange(40), 6), items, np.ones(240), np.tile(np.arange(6.0), 40),
        tuple(f"{kinds[item % 5]} {('small', 'large', 'old')[item % 3]}" for item in range(30)),
        np.zeros((30, 0), dtype=np.float32), (),
    )  # fmt: skip


@pytest.mark.parametrize(("method", "text", "weight"), [
    ("rq-vae", "tfidf-svd", 0.2), ("rq-kmeans", "tfidf-svd", 0.0), ("rq-kmeans", None, 0.5)
])  # fmt: skip
def test_ids_of_a_log_are_built_in_one_call_saved_and_extended(
    method: str, text: str | None, weight: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RERANK_CACHE", str(tmp_path / "cache"))
    log = shop()
    seen = np.tile(np.arange(6) < 4, 40)
    vae = replace(SMALL, contrastive=0.1)
    settings = CoderSettings(method=method, text=text, collaborative=weight, width=4, vae=vae)
    built, again = (build(log, seen, settings) for _ in range(2))
    assert (built.ids.codes_IL == again.ids.codes_IL).all()
    assert built.ids.uniqueness_L()[-1] == 1.0 and built.ids.meaning_levels == 2
    assert built.ids.sizes == (8, 8, 8)
    built.coder.save_pretrained(tmp_path / "coder")
    coder = ItemCoder.from_pretrained(tmp_path / "coder")
    assert coder.settings == settings
    assert (coder.quantiser.codes(built.rows_ID) == built.ids.codes_IL[:, :2]).all()
    texts = [*log.texts, "red polish small", "a toy nobody knows"]
    if text is None:
        with pytest.raises(InputError, match="made of purchases alone"):
            coder.extend(built.ids, texts, rng=np.random.default_rng(0))
        return
    grown = coder.extend(built.ids, texts, rng=np.random.default_rng(0))
    assert len(grown) == 32 and grown.uniqueness_L()[-1] == 1.0
    if not weight:  # an item whose text is that of another means the same, by text alone
        assert (grown.codes_IL[30, :2] == grown.codes_IL[0, :2]).all()


def test_purchases_that_may_not_be_seen_have_no_say_in_the_ids(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RERANK_CACHE", str(tmp_path))
    log, seen = shop(), np.tile(np.arange(6) < 4, 40)
    swapped = log.items_N.copy().reshape(40, 6)
    swapped[:, 4:] = swapped[::-1, 4:]
    other = replace(log, items_N=swapped.ravel())
    settings = CoderSettings(text="tfidf-svd", collaborative=0.5, width=4, vae=replace(SMALL, contrastive=0.1))
    assert (build(log, seen, settings).ids.codes_IL == build(other, seen, settings).ids.codes_IL).all()


def test_coder_settings_and_files_that_make_no_sense_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'rq-vae'"):
        CoderSettings(method="rqvae")
    for settings in ({"collaborative": 1.0}, {"collaborative": -0.1}, {"text": None, "collaborative": 0.0}):
        with pytest.raises(InputError, match="give a weight from 0 to below 1, or text=None"):
            CoderSettings(**settings)  # type: ignore[arg-type]
    with pytest.raises(CheckpointError, match=r"coder\.json cannot be read"):
        ItemCoder.from_pretrained(tmp_path)


def test_without_scikit_learn_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    from rerank_env.agents.semantic_ids.tfidf import TfidfSvd

    monkeypatch.setitem(sys.modules, "sklearn.cluster", None)
    monkeypatch.setitem(sys.modules, "sklearn.decomposition", None)
    clustering = lambda: fit(clustered(20), SMALL, generator=seeded())  # noqa: E731
    counting = lambda: TfidfSvd.fit(["a"], rng=np.random.default_rng(0))  # noqa: E731
    for act in (clustering, counting):
        with pytest.raises(MissingExtraError, match=r"needs scikit-learn, .*rerank-env\[semantic-ids\]"):
            act()


def test_public_names_are_sorted_and_all_there() -> None:
    from rerank_env.agents import semantic_ids

    assert semantic_ids.__all__ == sorted(semantic_ids.__all__)
    assert all(getattr(semantic_ids, name) is not None for name in semantic_ids.__all__)
    assert callable(semantic_ids.report)


@pytest.mark.gpu
def test_training_runs_on_a_cuda_device() -> None:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    rows, pairs = clustered(100), np.random.default_rng(0).integers(0, 100, size=(80, 2))
    config = replace(SMALL, contrastive=0.1, diversity=0.01, dead_after=3)
    model = fit(rows, config, generator=seeded(), pairs_P2=pairs, device="cuda")
    assert model.codes(rows).shape == (100, 2)
    assert relative_error(rows, model.reconstructed(rows)) < 0.5
