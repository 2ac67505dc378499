"""An asyncio coordinator of Evochi's protocol, as short as it can be: what `benchmarks/es/evochi_front.py` compares `echo_es` with.

It has the classes that Google's compiler generates, no tokens, no deadlines and no leases, and it trusts every result.
"""

from __future__ import annotations

import asyncio
import itertools
import sys
from typing import Any

import evochi.v1.evochi_pb2 as pb
import evochi.v1.evochi_pb2_grpc as rpc
import grpc.aio


class Rival(rpc.EvochiServiceServicer):  # type: ignore[misc]
    def __init__(self, population: int) -> None:
        self.population, self.epoch, self.state = population, 1, b""
        self.free: list[tuple[int, int]] = [(0, population)]
        self.rewards = [0.0] * population
        self.missing = population
        self.optimizing: set[str] = set()
        self.queues: dict[str, asyncio.Queue[Any]] = {}
        self.cores: dict[str, int] = {}
        self.ids = itertools.count()

    async def Subscribe(self, request: Any, context: Any) -> Any:
        me = str(next(self.ids))
        queue = self.queues[me] = asyncio.Queue()
        first = len(self.queues) == 1 and not self.state  # asked after the hello, when others have joined, nobody would be the first
        self.cores[me] = request.cores
        try:
            hello = pb.HelloEvent(id=me, token=me, population_size=self.population, heartbeat_interval=30)
            if self.state:
                hello.state = self.state
            yield pb.SubscribeResponse(type=pb.EVENT_TYPE_HELLO, hello=hello)
            if self.state:
                self.give(me)
            elif first:
                queue.put_nowait(pb.SubscribeResponse(type=pb.EVENT_TYPE_INITIALIZE, initialize=pb.InitializeEvent(task_id="i")))
            while True:
                yield await queue.get()
        finally:
            del self.queues[me]

    def give(self, worker: str) -> None:
        slices, room = [], self.cores[worker]
        while room and self.free:
            start, end = self.free.pop()
            taken = min(room, end - start)
            if start + taken < end:
                self.free.append((start + taken, end))
            slices.append(pb.Slice(start=start, end=start + taken))
            room -= taken
        if slices:
            event = pb.EvaluateEvent(task_id=str(next(self.ids)), epoch=self.epoch, slices=slices)
            self.queues[worker].put_nowait(pb.SubscribeResponse(type=pb.EVENT_TYPE_EVALUATE, evaluate=event))

    def caller(self, context: Any) -> str:
        return str(dict(context.invocation_metadata())["authorization"].removeprefix("Bearer "))

    async def Heartbeat(self, request: Any, context: Any) -> Any:
        return pb.HeartbeatResponse(ok=True)

    async def FinishInitialization(self, request: Any, context: Any) -> Any:
        self.state = request.state
        for worker in self.queues:
            self.give(worker)
        return pb.FinishInitializationResponse(ok=True)

    async def FinishEvaluation(self, request: Any, context: Any) -> Any:
        for evaluation in request.evaluations:
            self.rewards[evaluation.slice.start : evaluation.slice.end] = evaluation.rewards
            self.missing -= len(evaluation.rewards)
        if self.missing:
            self.give(self.caller(context))
        else:
            self.optimizing = set(self.queues)
            event = pb.OptimizeEvent(task_id="o", epoch=self.epoch, rewards=self.rewards)
            for queue in self.queues.values():
                queue.put_nowait(pb.SubscribeResponse(type=pb.EVENT_TYPE_OPTIMIZE, optimize=event))
        return pb.FinishEvaluationResponse(ok=True)

    async def FinishOptimization(self, request: Any, context: Any) -> Any:
        worker = self.caller(context)
        self.optimizing.discard(worker)
        if not self.optimizing:
            event = pb.ShareStateEvent(task_id="s", epoch=self.epoch)
            self.queues[worker].put_nowait(pb.SubscribeResponse(type=pb.EVENT_TYPE_SHARE_STATE, share_state=event))
        return pb.FinishOptimizationResponse(ok=True)

    async def FinishShareState(self, request: Any, context: Any) -> Any:
        self.state, self.epoch, self.free, self.missing = request.state, self.epoch + 1, [(0, self.population)], self.population
        for worker in self.queues:
            self.give(worker)
        return pb.FinishShareStateResponse(ok=True)


async def main() -> None:
    server = grpc.aio.server()
    rpc.add_EvochiServiceServicer_to_server(Rival(int(sys.argv[1])), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(port, flush=True)
    await server.wait_for_termination()


if __name__ == "__main__":
    asyncio.run(main())
