"""The clocks of the benchmarks count a part's own time, once; made-up remarks are read back as they were written."""

import numpy as np
import pytest
from stopwatch import Stopwatch


def test_a_part_inside_another_stops_its_time() -> None:
    # entered at 1, 2; left at 5, 9; entered again at 12, left at 20
    stopwatch = Stopwatch(iter([1.0, 2.0, 5.0, 9.0, 12.0, 20.0]).__next__)
    with stopwatch.of("outer"), stopwatch.of("inner"):
        pass
    assert stopwatch.seconds == {"outer": 1.0 + 4.0, "inner": 3.0}
    with stopwatch.of("inner"):
        pass
    assert stopwatch.seconds == {"outer": 5.0, "inner": 3.0 + 8.0}  # 9 to 12 is nobody's


def test_a_part_inside_itself_counts_once() -> None:
    stopwatch = Stopwatch(iter([0.0, 1.0, 3.0, 7.0]).__next__)
    with stopwatch.of("part"), stopwatch.of("part"):
        pass
    assert stopwatch.seconds == {"part": 7.0}


def test_a_function_that_fails_stops_its_clock() -> None:
    stopwatch = Stopwatch(iter([0.0, 2.0, 5.0, 6.0]).__next__)

    def fails(number: int) -> None:
        raise ValueError(number)

    timed = stopwatch.around(fails, "part")
    for number in (1, 2):
        with pytest.raises(ValueError, match=str(number)):
            timed(number)
    assert stopwatch.seconds == {"part": 2.0 + 1.0}


@pytest.mark.torch
def test_levels_are_read_back_from_remarks_as_they_were_written() -> None:
    pytest.importorskip("transformers")
    import remarked

    requests = remarked.requests_of(16, seed=3)
    levels = remarked.Levels()
    levels_BKF = levels.levels_of(requests)
    assert levels_BKF.shape == (16, remarked.SLATE_SIZE, 5)
    assert levels_BKF.min() >= 0 and levels_BKF.max() <= remarked.LEVELS
    assert (levels_BKF[:, :, 0] == np.arange(remarked.LEVELS, 0, -1)).all()  # the place in the incoming order
    order_BK = np.argsort(np.random.default_rng(0).random((16, remarked.SLATE_SIZE)), axis=1)
    moved = levels.levels_of(requests.reordered(order_BK))
    assert (moved == np.take_along_axis(levels_BKF, order_BK[:, :, None], axis=1)).all()


@pytest.mark.torch
def test_benchmarks_of_language_models_have_the_shape_of_the_tiny_recipe() -> None:
    for library in ("transformers", "trl", "peft"):
        pytest.importorskip(library)
    import prefix_decoding
    import remarked
    import trl_overhead

    from rerank_env.training.recipes.sizes import size_of

    tiny = size_of("tiny").settings
    assert remarked.Levels().names == ("stage", "next", "near", "rate", "text")
    made = remarked.model_for(remarked.build_tokenizer(["one text"], vocab_size=400)).config
    assert (made.hidden_size, made.num_hidden_layers) == (tiny.model.width, tiny.model.layers)
    assert (made.num_attention_heads, made.max_position_embeddings) == (tiny.model.heads, tiny.model.context)
    first = prefix_decoding.SIZES[0]
    assert (first.width, first.layers, first.heads) == (tiny.model.width, tiny.model.layers, tiny.model.heads)
    benchmark = object.__new__(trl_overhead.Benchmark)
    benchmark.groups = tiny.dapo.groups_per_step
    config = benchmark._config(2, 0, tiny.dapo.metric, tiny.dapo.max_resamples)
    for name in ("group_size", "micro_batch", "max_tokens", "learning_rate", "metric", "max_resamples"):
        assert getattr(config, name) == getattr(tiny.dapo, name), name
    assert tiny.dapo.reward == trl_overhead.REWARD


@pytest.mark.torch
def test_reasons_are_drawn_at_the_temperature_of_the_recipes_teacher(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("transformers")
    import remarked

    from rerank_env.prompts import PromptWriter
    from rerank_env.training.recipes.sizes import size_of

    fitted: list[float] = []
    fit = remarked.RuleTeacher.fit

    def watched(*given: object, **told: float) -> object:
        made = fit(*given, **told)  # type: ignore[arg-type]
        fitted.append(made.temperature)
        return made

    monkeypatch.setattr(remarked.RuleTeacher, "fit", watched)
    remarked.lessons(remarked.requests_of(16, seed=0), PromptWriter("tagged-list", prompt="compact"), seed=0)
    assert fitted == [size_of("tiny").settings.traces.temperature]
