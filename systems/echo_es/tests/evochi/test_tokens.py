"""JSON web tokens of HS512."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from echo_core import SecurityError
from echo_es.evochi.tokens import issue, verify


def made(secret: bytes, header: object, claims: object, digest: str = "sha512") -> str:
    parts = [base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=").decode() for part in (header, claims)]
    signature = hmac.new(secret, ".".join(parts).encode(), getattr(hashlib, digest)).digest()
    return ".".join([*parts, base64.urlsafe_b64encode(signature).rstrip(b"=").decode()])


def test_a_token_names_its_worker_and_its_end() -> None:
    before = time.time()
    worker, ends = verify(b"secret", issue(b"secret", "one", expiry=600))
    assert worker == "one"
    assert before + 599 <= ends <= time.time() + 601


def test_a_token_is_a_json_web_token_with_the_claims_of_evochi() -> None:
    header, claims, _ = issue(b"secret", "one", expiry=60).split(".")
    assert json.loads(base64.urlsafe_b64decode(header + "==")) == {"alg": "HS512", "typ": "JWT"}
    said = json.loads(base64.urlsafe_b64decode(claims + "=="))
    assert said["iss"] == "evochi@v1"
    assert said["exp"] - said["iat"] == 60


def test_a_token_of_another_server_is_refused() -> None:
    with pytest.raises(SecurityError, match="not one that this server has issued"):
        verify(b"secret", issue(b"another", "one"))


@pytest.mark.parametrize("header", [{"alg": "none"}, {"alg": "HS256", "typ": "JWT"}, {}, 7])
def test_only_hs512_is_accepted(header: object) -> None:
    claims = {"sub": "one", "exp": time.time() + 60}
    with pytest.raises(SecurityError):
        verify(b"secret", made(b"secret", header, claims))


@pytest.mark.parametrize("claims", [{"exp": 1e12}, {"sub": "one"}, {"sub": "one", "exp": "soon"}, {"sub": "one", "exp": None}, ["sub", "exp"]])
def test_a_token_without_its_claims_is_refused(claims: object) -> None:
    with pytest.raises(SecurityError):
        verify(b"secret", made(b"secret", {"alg": "HS512"}, claims))


def test_a_token_expires() -> None:
    token = issue(b"secret", "one", expiry=60)
    with pytest.raises(SecurityError, match="expired"):
        verify(b"secret", token, now=time.time() + 61)


@given(st.text(max_size=200))
def test_any_text_is_refused(text: str) -> None:
    with pytest.raises(SecurityError):
        verify(b"secret", text)
