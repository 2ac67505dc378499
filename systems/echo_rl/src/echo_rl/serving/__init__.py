"""Serve an engine: a thread that steps it, texts, and an endpoint that speaks OpenAI's protocol."""

from echo_rl.serving.endpoint import Endpoint
from echo_rl.serving.text import ByteTokenizer, FileTokenizer, TextStream, Tokenizer
from echo_rl.serving.worker import Busy, EngineWorker, Stream

__all__ = ["Busy", "ByteTokenizer", "Endpoint", "EngineWorker", "FileTokenizer", "Stream", "TextStream", "Tokenizer"]
