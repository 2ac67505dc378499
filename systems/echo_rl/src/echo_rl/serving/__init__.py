"""Serve an engine: a thread that steps it, texts, an endpoint that speaks OpenAI's protocol, and sessions of agents that become records."""

from echo_rl.serving.collector import SessionCollector
from echo_rl.serving.endpoint import Endpoint
from echo_rl.serving.errors import ApiError
from echo_rl.serving.sessions.records import SessionGroups, group_record, oldest_version, session_records
from echo_rl.serving.sessions.session import EndedSession, Session, SessionLimits
from echo_rl.serving.text import ByteTokenizer, FileTokenizer, TextStream, Tokenizer
from echo_rl.serving.worker import Busy, EngineWorker, Stream

__all__ = [
    "ApiError",
    "Busy",
    "ByteTokenizer",
    "EndedSession",
    "Endpoint",
    "EngineWorker",
    "FileTokenizer",
    "Session",
    "SessionCollector",
    "SessionGroups",
    "SessionLimits",
    "Stream",
    "TextStream",
    "Tokenizer",
    "group_record",
    "oldest_version",
    "session_records",
]
