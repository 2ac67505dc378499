"""Rollouts through asyncio."""

import asyncio

import pytest
import torch

from echo_rl.core import ExecutionConfig
from echo_rl.core.async_execution import AsyncExecutionEngine, KVCacheManager
from echo_rl.engine import Model, ModelConfig

CONFIG = ModelConfig("gpt2", vocab=40, layers=1, heads=2, width=16, inner=16, context=128)


def engine(**fields: float) -> AsyncExecutionEngine:
    return AsyncExecutionEngine(ExecutionConfig(**fields), Model.random(CONFIG, scale=0.3))


def test_rollouts_share_a_prefix_and_come_back_by_id() -> None:
    async def main() -> None:
        e = engine(max_new_tokens=5)
        first = await e.submit_rollout(state_sequence=[1, 2, 3, 4, 5], priority=1.0)
        assert len((await e.result(first)).tokens) == 5
        second = await e.submit_rollout([1, 2, 3, 4, 9], max_new=3)
        streamed = [token async for token in e.stream(second)]
        found = await e.result(second)
        assert tuple(streamed) == found.tokens and len(found.tokens) == len(found.logprobs) == 3
        assert found.reused == e.cache.stats()["hit_tokens"] == 4
        assert e.cache.stats()["hit_rate"] == 0.5
        with pytest.raises(KeyError, match=f"rollout {second} is unknown, or its result was taken"):
            await e.result(second)

    asyncio.run(main())


def test_a_cancelled_rollout_keeps_its_tokens_and_others_go_on() -> None:
    async def main() -> None:
        e = engine()
        long = await e.submit_rollout([1, 2, 3], max_new=100)
        other = await e.submit_rollout([1, 2, 4], max_new=100)
        stream = e.stream(long)
        seen = [await anext(stream)]
        assert await e.cancel(long) and not await e.cancel(long)
        seen += [token async for token in stream]
        found = await e.result(long)
        assert found.finish == "abort" and list(found.tokens) == seen
        assert len((await e.result(other)).tokens) == 100

    asyncio.run(main())


def test_a_paused_engine_goes_on_where_it_was() -> None:
    async def main() -> None:
        e = engine()
        whole = (await e.result(await e.submit_rollout([1, 2, 3], max_new=100, temperature=0.0))).tokens
        number = await e.submit_rollout([1, 2, 3], max_new=100, temperature=0.0)
        await anext(e.stream(number))
        await e.pause()
        with pytest.raises(TimeoutError):
            await e.result(number, timeout=0.2)
        dropped = await e.submit_rollout([5], max_new=3)
        assert await e.cancel(dropped)
        e.resume()
        assert (await e.result(number)).tokens == whole
        assert (await e.result(dropped)).tokens == ()

    asyncio.run(main())


def test_new_weights_number_the_tokens() -> None:
    async def main() -> None:
        e = engine()
        number = await e.submit_rollout([1, 2, 3], max_new=100)
        await anext(e.stream(number))
        await e.update_weights(Model.random(CONFIG, 1, scale=0.3).weights, 1)
        versions = (await e.result(number)).versions
        assert set(versions) == {0, 1} and list(versions) == sorted(versions)
        with pytest.raises(ValueError, match="version 1 is not newer than 1"):
            await e.update_weights(Model.random(CONFIG), 1)

    asyncio.run(main())


def test_a_stream_ends_beside_a_result() -> None:
    """Each who waits is woken, also if one of them is slower than the tokens come."""

    async def main() -> None:
        async with engine() as e:
            number = await e.submit_rollout([1, 2, 3], max_new=30)

            async def slowly() -> list[int]:
                seen = []
                async for token in e.stream(number):
                    seen.append(token)
                    await asyncio.sleep(0.001)
                return seen

            streams = [asyncio.create_task(slowly()) for _ in range(3)]
            found, again = await asyncio.gather(e.result(number), e.result(number))
            assert found == again
            assert [await asyncio.wait_for(s, 60) for s in streams] == [list(found.tokens)] * 3

    asyncio.run(main())


def test_a_stream_that_gets_no_token_says_so() -> None:
    async def main() -> None:
        async with engine() as e:
            number = await e.submit_rollout([1, 2, 3], max_new=3)
            await e.result(await e.submit_rollout([4]))
            await e.pause()
            later = await e.submit_rollout([1, 2, 3], max_new=3)
            with pytest.raises(TimeoutError, match=f"rollout {later} made no token for 0.1 s; stream again, or cancel it"):
                async for _ in e.stream(later, timeout=0.1):
                    pass
            assert len((await e.result(number)).tokens) == 3
        with pytest.raises(RuntimeError, match="worker is closed"):
            await e.submit_rollout([1])

    asyncio.run(main())


def test_a_callable_is_batched_by_shape() -> None:
    shapes = []

    def double(states: torch.Tensor) -> torch.Tensor:
        shapes.append(tuple(states.shape))
        return states * 2

    async def main() -> None:
        e = AsyncExecutionEngine(ExecutionConfig(max_concurrent_rollouts=2), double)
        numbers = [await e.submit_rollout(torch.full((size,), float(size))) for size in (3, 3, 3, 5)]
        for number, size in zip(numbers, (3, 3, 3, 5), strict=True):
            found = await e.result(number)
            assert found.value.tolist() == [2.0 * size] * size and found.reused == 0 and found.versions == (0,)
        assert max(shape[0] for shape in shapes) <= 2
        with pytest.raises(ValueError, match="need a token model"):
            await e.submit_rollout([1.0], max_new=3)
        with pytest.raises(ValueError, match="no weights that could be updated"):
            await e.update_weights({}, 1)

    asyncio.run(main())


def test_the_models_error_reaches_who_waits() -> None:
    def broken(states: torch.Tensor) -> torch.Tensor:
        if (states < 0).any():
            raise ArithmeticError("no answer")
        return states

    async def main() -> None:
        e = AsyncExecutionEngine(model=broken)
        with pytest.raises(ArithmeticError, match="no answer"):
            await e.result(await e.submit_rollout([-1.0]))
        assert (await e.result(await e.submit_rollout([1.0]))).value.tolist() == [1.0]

    asyncio.run(main())


def test_a_modules_weights_have_a_version() -> None:
    async def main() -> None:
        module = torch.nn.Linear(1, 1)
        e = AsyncExecutionEngine(model=module)
        zeros = {name: torch.zeros_like(value) for name, value in module.state_dict().items()}
        with pytest.raises(ValueError, match="the state does not fit the module: 'bias' and 0 others"):
            await e.update_weights({"weight": zeros["weight"]}, 3)
        await e.update_weights(zeros, 3)
        found = await e.result(await e.submit_rollout([5.0]))
        assert found.value.tolist() == [0.0] and found.versions == (3,)
        with pytest.raises(ValueError, match="version 3 is not newer than 3"):
            await e.update_weights(zeros, 3)

    asyncio.run(main())


def test_a_result_that_is_late_says_so() -> None:
    async def main() -> None:
        e = engine(timeout=1e-9)
        number = await e.submit_rollout([1, 2, 3], max_new=100)
        with pytest.raises(TimeoutError, match=f"rollout {number} did not end within 1e-09 s; wait again, or cancel it"):
            await e.result(number)
        assert len((await e.result(number, timeout=60)).tokens) == 100

    asyncio.run(main())


def test_the_fields_limit_the_engine() -> None:
    async def main() -> None:
        with pytest.raises(ValueError, match="the 8 tokens that kv_bytes=1024 holds"):
            await engine(max_cache_size=8, max_new_tokens=4).submit_rollout([1] * 6)

    asyncio.run(main())
    with pytest.raises(ValueError, match="timeout must be a finite number greater than 0"):
        ExecutionConfig(timeout=0)
    with pytest.raises(ValueError, match="scheduler must be one of .*, got 'sjf'"):
        AsyncExecutionEngine(ExecutionConfig(scheduler="sjf"), Model.random(CONFIG))


def test_the_seeds_priority() -> None:
    assert KVCacheManager(config=ExecutionConfig()).compute_priority(1.0, 0.5) == pytest.approx(1 / (0.5 + 1e-6))
    assert KVCacheManager(ExecutionConfig(epsilon=0.5)).compute_priority(1.0, 0.5) == 1
    assert KVCacheManager().stats()["hit_rate"] == 0


@pytest.mark.skipif(torch.cuda.is_available(), reason="CUDA is there")
def test_cuda_falls_back_with_a_warning() -> None:
    with pytest.warns(UserWarning, match="the CPU is used"):
        assert AsyncExecutionEngine(config=ExecutionConfig(), model=Model.random(CONFIG), device="cuda").device.type == "cpu"
