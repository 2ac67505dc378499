"""An HTTP endpoint on an engine that speaks OpenAI's protocol, for this machine only.

``GET /v1/models``, ``POST /v1/completions`` and ``POST /v1/chat/completions``; any client of OpenAI's interface can use it. ``POST /sessions`` opens a session
for one agent, which gets a base URL and a key of its own.
"""

from __future__ import annotations

import ipaddress
import math
import secrets
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from echo_rl.engine import Engine
from echo_rl.serving.chat import ChatTemplate
from echo_rl.serving.errors import ApiError
from echo_rl.serving.handler import EndpointServer
from echo_rl.serving.protocol import Choice, Job, Prompts, parse
from echo_rl.serving.sessions.gateway import Gateway
from echo_rl.serving.sessions.histories import histories
from echo_rl.serving.sessions.registry import Sessions
from echo_rl.serving.sessions.session import Call, EndedSession, Session, SessionLimits
from echo_rl.serving.sessions.turns import Continuation
from echo_rl.serving.text import ByteTokenizer, TextStream, Tokenizer
from echo_rl.serving.worker import Busy, EngineWorker


class Endpoint:
    """Serves one engine until ``close``, in threads of its own. Use it as a context manager.

    Args:
        engine: An engine, or a worker. The endpoint steps an engine itself. A worker may have other users, and the endpoint does not close it.
        tokenizer: The tokenizer of texts. By default each byte is a token.
        model: The name that clients ask for.
        host: A loopback address of this machine, because the endpoint does not encrypt anything.
        port: The port. 0 takes a free port.
        token: The API key that clients send. By default it is random.
        template: The template that turns conversations into prompts.
        most: The largest number of choices that are served at once. Further calls get the status 429 with retry-after. If a worker is given, its own limit
            holds.
        max_body: The largest accepted body of a request, in bytes.
        connections: The largest number of requests at the same time, each on its own connection. Further ones get the status 429 with retry-after. A
            connection that waits for its client's next request does not count. Four times as many may be open; beyond that, the one that has been idle for
            the longest time is closed.
        timeout: For how many seconds a client may send one request, from its first byte to its last, stay idle between two requests, or take to receive a
            piece of the answer.
        sessions: What the sessions of agents may use.
        on_end: Takes what each ended session leaves behind, before the one who ends it learns of its end. It runs in the thread of that call.

    Attributes:
        url: The base URL for clients, such as ``http://127.0.0.1:8000/v1``.
        token: The key. It is the operator's: it opens, rewards and ends sessions.
        worker: The engine's worker.
        sessions: The sessions.

    Raises:
        ValueError: If the host is not of the loopback, if the worker steps something else than an ``Engine``, if ``connections`` is less than 1, or if the
            tokenizer has more tokens than the model.
    """

    def __init__(
        self,
        engine: Engine | EngineWorker,
        tokenizer: Tokenizer | None = None,
        *,
        model: str = "echo",
        host: str = "127.0.0.1",
        port: int = 0,
        token: str | None = None,
        template: ChatTemplate | None = None,
        most: int = 256,
        max_body: int = 1 << 20,
        connections: int = 128,
        timeout: float = 30.0,
        sessions: SessionLimits | None = None,
        on_end: Callable[[EndedSession], None] | None = None,
    ) -> None:
        if not (host == "localhost" or _loopback(host)):
            raise ValueError(f"host={host!r} is not of this machine's loopback; put a proxy with TLS before the endpoint to serve other machines")
        inner = engine.engine if isinstance(engine, EngineWorker) else engine
        if not isinstance(inner, Engine):
            raise ValueError(f"the worker steps a {type(inner).__name__}; an endpoint needs a worker of an Engine")
        self._engine = inner
        self.tokenizer: Tokenizer = tokenizer or ByteTokenizer()
        if self.tokenizer.vocab > inner.model.config.vocab:
            raise ValueError(f"the tokenizer has {self.tokenizer.vocab} tokens and the model only {inner.model.config.vocab}")
        if token == "":
            raise ValueError("the token is empty")
        self.model, self.template, self.max_body, self.timeout = model, template or ChatTemplate(), max_body, timeout
        self.token = secrets.token_urlsafe(24) if token is None else token
        self._server = EndpointServer((host, port), self, connections)
        self._own = not isinstance(engine, EngineWorker)
        self.worker = engine if isinstance(engine, EngineWorker) else EngineWorker(engine, most)
        base = f"http://{f'[{host}]' if ':' in host else host}:{self._server.server_address[1]}"
        self.url = f"{base}/v1"
        self.sessions = Sessions(base, sessions or SessionLimits(), on_end)
        self.gateway = Gateway(self.token, self.sessions)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), name="echo-rl-endpoint", daemon=True)
        self._thread.start()

    def __enter__(self) -> Endpoint:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End every connection and request, and every session without a record."""
        self._server.shutdown()
        self._thread.join()
        self.sessions.close()
        self._server.connections.end()
        if self._own:
            self.worker.close()
        self._server.server_close()

    def open_session(self, *, task: int = 0, attempt: int = 0, seed: int | None = None, metadata: Mapping[str, Any] | None = None) -> Session:
        """Open a session for one agent; see ``Sessions.open``. The agent gets its ``base_url``, and its ``key`` as the API key."""
        return self.sessions.open(task=task, attempt=attempt, seed=seed, metadata=metadata)

    def job(self, body: object, chat: bool) -> Job:
        """Check what a call asks for; raise ApiError."""
        return self._parse(body, chat, lambda fields: [history.whole() for history in histories(fields, chat, self.tokenizer, self.template)])

    def session_job(self, session: Session, body: object, chat: bool) -> tuple[Job, Call]:
        """Check what a call in a session asks for, and reserve its turns; raise ApiError. The call has to be left, as a context manager."""
        found: list[Continuation] = []

        def read(fields: Mapping[str, Any]) -> Prompts:
            asked = histories(fields, chat, self.tokenizer, self.template)
            if len(asked) > 1:
                raise ApiError(400, f"a call in a session has one prompt, not {len(asked)}; n asks for several answers", param="prompt")
            found.append(session.continuation(asked[0]))
            return [found[0].prompt]

        try:
            job = self._parse(body, chat, read)
        except ApiError as error:
            if found and error.body["error"]["code"] == "context_length_exceeded":
                session.limited(found[0])
            raise
        call = session.call(found[0], job.n, job.max_new)
        return (job if job.seed is not None else replace(job, seed=call.seed)), call

    def _parse(self, body: object, chat: bool, read: Callable[[Mapping[str, Any]], Prompts]) -> Job:
        engine = self._engine
        context = min(engine.model.config.context, engine.kv_tokens)
        return parse(body, chat, self.model, read, engine.room, context, self.worker.most, engine.model.generation.most)

    def begin(self, job: Job) -> list[Choice]:
        """Queue a job's requests; raise ApiError if the engine refuses them, or if too many live."""
        prompts = job.all_prompts()
        texts = [TextStream(self.tokenizer, job.stop, self._engine.model.generation.ends) for _ in prompts]
        watches = [t.push for t in texts]
        try:
            streams = self.worker.submit(prompts, job.max_new, watches=watches, seed=job.seed, temperature=job.temperature, top_p=job.top_p, top=job.top or 0)
        except Busy as error:
            after = str(max(1, math.ceil(error.retry_after)))
            raise ApiError(429, str(error), "rate_limit_error", code="rate_limit_exceeded", retry_after=after) from error
        except ValueError as error:
            raise ApiError(400, str(error)) from error
        except RuntimeError as error:
            raise ApiError(503, "the endpoint is closing", "server_error") from error
        return [Choice(job, i, s.request, t, self.tokenizer) for i, (s, t) in enumerate(zip(streams, texts, strict=True))]


def _loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
