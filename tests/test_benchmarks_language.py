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
