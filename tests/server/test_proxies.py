"""The proxy samples of examples/, as they stand but for names, ports and certificates, before a live server."""

import contextlib
import datetime
import ipaddress
import json
import re
import socket
import ssl
import subprocess
import threading
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from server.waiting import eventually

EXAMPLES = Path(__file__).parents[2] / "examples"
UPSTREAM = "127.0.0.1:8000"
MANY_TOKENS = 40


@dataclass
class Certificate:
    chain: Path
    key: Path


@pytest.fixture(scope="session")
def certificate(tmp_path_factory):
    """A certificate of this session's own for the loopback address."""
    folder, key = tmp_path_factory.mktemp("tls"), ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.UTC)
    names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    signed = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    made = Certificate(folder / "chain.pem", folder / "key.pem")
    made.chain.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
    unencrypted = serialization.NoEncryption()
    made.key.write_bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, unencrypted))
    return made


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def replaced(text, **changes):
    """The sample with each `old` replaced by its `new`; every one must be there."""
    for old, new in changes.values():
        assert old in text, old
        text = text.replace(old, new)
    return text


def nginx(folder, upstream, port, plain_port, certificate, program):
    sample = replaced(
        (EXAMPLES / "nginx.conf").read_text(),
        upstream=(UPSTREAM, upstream),
        tls=("listen 443 ssl", f"listen 127.0.0.1:{port} ssl"),
        plain=("listen 80", f"listen 127.0.0.1:{plain_port}"),
        name=("server_name text.example.org", "server_name localhost"),
        chain=("/etc/letsencrypt/live/text.example.org/fullchain.pem", str(certificate.chain)),
        key=("/etc/letsencrypt/live/text.example.org/privkey.pem", str(certificate.key)),
    )
    temporary = "".join(
        f"{kind}_temp_path {folder}/{kind};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    main = (
        f"daemon off; pid {folder}/pid; error_log stderr; events {{}} http {{ access_log off; {temporary} {sample} }}"
    )
    (folder / "nginx.conf").write_text(main)
    return [program("nginx", "nginx"), "-p", str(folder), "-e", "stderr", "-c", str(folder / "nginx.conf")]


def caddy(folder, upstream, port, plain_port, certificate, program):
    sample = replaced(
        (EXAMPLES / "Caddyfile").read_text(),
        upstream=(UPSTREAM, upstream),
        name=("\ntext.example.org {", f"\nhttps://localhost:{port} {{\n\ttls {certificate.chain} {certificate.key}"),
    )
    options = f"admin off\n\thttp_port {plain_port}\n\thttps_port {port}\n\tstorage file_system {folder}"
    (folder / "Caddyfile").write_text(f"{{\n\t{options}\n}}\n{sample}")
    return [program("caddy", "caddy"), "run", "--config", str(folder / "Caddyfile"), "--adapter", "caddyfile"]


@pytest.fixture(params=[nginx, caddy], ids=["nginx", "caddy"])
def proxied(request, program, certificate, tmp_path):
    """A function that puts the proxy in front of a server and gives a client of it."""
    with contextlib.ExitStack() as stack:

        def start(url, key):
            port = free_port()
            command = request.param(tmp_path, url.removeprefix("http://"), port, free_port(), certificate, program)
            log = stack.enter_context((tmp_path / "log").open("w"))
            process = subprocess.Popen(
                command, stdout=log, stderr=log, env={"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}
            )
            stack.callback(process.wait, 20)
            stack.callback(process.terminate)

            def is_listening():
                assert process.poll() is None, (tmp_path / "log").read_text()
                with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                    return True
                return None

            eventually(is_listening, 30)
            trusted = ssl.create_default_context(cafile=str(certificate.chain))
            headers = {"Authorization": f"Bearer {key}"}
            return stack.enter_context(
                httpx.Client(base_url=f"https://localhost:{port}", headers=headers, verify=trusted, timeout=30)
            )

        yield start


def test_a_stream_comes_through_token_by_token(live, parts, proxied, monkeypatch):
    server = live()
    client = proxied(server.url, server.key("ward 3"))
    extend, steps, first_text_has_come = parts.ensemble.extend, [], threading.Event()

    def extend_until_the_client_has_text(*arguments, **options):
        steps.append(None)
        if len(steps) == 4:
            assert first_text_has_come.wait(25), "the proxy keeps the stream back"
        return extend(*arguments, **options)

    monkeypatch.setattr(parts.ensemble, "extend", extend_until_the_client_has_text)
    ask = {"model": "tiny", "prompt": "abc", "max_tokens": MANY_TOKENS, "stream": True, "temperature": 2, "seed": 5}
    with client.stream("POST", "/v1/completions", json=ask) as answer:
        assert answer.status_code == 200
        lines = answer.iter_lines()
        pieces = [next(line for line in lines if line)]
        first_text_has_come.set()
        pieces += [line for line in lines if line]
    assert pieces[-1] == "data: [DONE]"
    chunks = [json.loads(piece.removeprefix("data: ")) for piece in pieces[:-1]]
    assert chunks[-1]["choices"][0]["finish_reason"] in ("stop", "length")
    assert server.ledger.curator.state.tokens_released >= len(chunks) - 1


def test_keys_and_limits_hold_behind_a_proxy(live, proxied):
    server = live()
    client = proxied(server.url, server.key("ward 3"))
    ask = {"model": "tiny", "prompt": "abc", "max_tokens": 1}
    assert client.post("/v1/completions", json=ask).json()["usage"]["completion_tokens"] == 1
    refused = client.post("/v1/completions", json=ask, headers={"Authorization": "Bearer rtc-nobody"})
    assert (refused.status_code, refused.json()["error"]["code"]) == (401, "invalid_api_key")
    large = client.post("/v1/completions", json={**ask, "prompt": "a" * 1_100_000})
    assert large.status_code == 413
    assert server.ledger.curator.state.tokens_released == 1


def test_a_server_without_keys_refuses_what_a_proxy_forwards(live, proxied):
    answer = proxied(live().url, "none").get("/v1/models")
    assert answer.status_code in (401, 403)
    assert re.search("key", answer.json()["error"]["message"])
