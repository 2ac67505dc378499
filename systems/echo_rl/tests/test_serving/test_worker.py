"""A thread that steps an engine for others."""

from __future__ import annotations

import threading

import pytest

from echo_rl.engine import Engine, Model
from echo_rl.serving import Busy, EngineWorker


def test_many_threads_get_what_one_gets(engine: Engine) -> None:
    """Each request has its own seed, so its tokens do not depend on the others."""
    alone = Engine(engine.model, slots=1, room=256)
    expected = [alone.submit([i, 1, 2], 12, seed=i) for i in range(8)]
    alone.run()
    found: dict[int, list[int]] = {}
    with EngineWorker(engine) as worker:

        def ask(i: int) -> None:
            found[i] = list(worker.submit([[i, 1, 2]], 12, seed=i)[0].tokens())

        threads = [threading.Thread(target=ask, args=(i,)) for i in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    assert [found[i] for i in range(8)] == [r.output for r in expected]


def test_weights_change_between_tokens_while_others_wait(engine: Engine) -> None:
    """Versions only grow within a request, and the tokens of both versions are there."""
    with EngineWorker(engine) as worker:
        stream = worker.submit([[1, 2, 3]], 200)[0]
        assert stream.wait(3, 60)
        worker.update_weights(Model.random(engine.model.config, 1, scale=0.3), 7)
        request = stream.result()
    assert request.versions == sorted(request.versions) and set(request.versions) == {0, 7}


def test_a_pause_holds_every_request(engine: Engine) -> None:
    with EngineWorker(engine) as worker:
        worker.pause()
        stream = worker.submit([[1, 2, 3]], 4)[0]
        with pytest.raises(TimeoutError, match=r"did not end within 0.1 s \(the engine is paused: 0 requests run and 1 wait\)"):
            stream.result(timeout=0.1)
        worker.resume()
        assert len(stream.result().output) == 4


def test_all_or_none_is_queued(engine: Engine) -> None:
    with EngineWorker(engine, most=3) as worker:
        worker.pause()
        with pytest.raises(ValueError, match="the prompt is empty"):
            worker.submit([[1], []], 4)
        streams = worker.submit([[1], [2]], 4)
        with pytest.raises(Busy, match="2 requests live and 2 more were asked for; at most 3 may"):
            worker.submit([[3], [4]], 4)
        worker.resume()
        assert all(len(s.result().output) == 4 for s in streams)


def test_who_stops_reading_ends_the_request(engine: Engine) -> None:
    with EngineWorker(engine) as worker:
        stream = worker.submit([[1, 2, 3]], 200)[0]
        tokens = stream.tokens()
        next(tokens)
        tokens.close()
        assert stream.request.finish == "abort"


def test_a_failing_step_reaches_those_who_wait(engine: Engine) -> None:
    def watch(token: int) -> bool:
        raise RuntimeError("broken on purpose")

    worker = EngineWorker(engine)
    streams = worker.submit([[1, 2], [3, 4]], 9, watches=[watch, lambda token: False])
    for stream in streams:
        with pytest.raises(RuntimeError, match="broken on purpose"):
            stream.result()
    with pytest.raises(RuntimeError, match="worker is closed"):
        worker.submit([[1]], 1)
    worker.close()
