"""Answers that are errors, in OpenAI's form."""

from __future__ import annotations


class ApiError(Exception):
    """An answer that is an error, in OpenAI's form.

    Attributes:
        status: The status of HTTP.
        body: The object of the answer.
        headers: Further headers of the answer.
    """

    def __init__(
        self, status: int, message: str, kind: str = "invalid_request_error", param: str | None = None, code: str | None = None, **headers: str
    ) -> None:
        super().__init__(message)
        self.status, self.headers = status, {name.replace("_", "-"): value for name, value in headers.items()}
        self.body = {"error": {"message": message, "type": kind, "param": param, "code": code}}
