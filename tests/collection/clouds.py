# SPDX-License-Identifier: GPL-3.0-or-later
"""Three clouds on loopback, which answer the requests of their own SDKs with tests/fixtures/cloud.

An SDK reaches them as if it was behind a company's proxy: HTTPS_PROXY names the proxy, and its CA bundle has the
proxy's certificate. So plugins and SDKs run unchanged, with their real host names, and nothing leaves this machine. The
proxy refuses and records hosts that it does not know.
"""

from __future__ import annotations

import datetime as dt
import fnmatch
import ipaddress
import json
import re
import ssl
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

RECORDED = Path(__file__).resolve().parents[1] / "fixtures" / "cloud"
EC2 = "{http://ec2.amazonaws.com/doc/2016-11-15/}"
PAGE_2 = "example-token-2"


@dataclass(frozen=True)
class Request:
    """A request of a client."""

    host: str
    method: str
    path: str
    query: dict[str, str]
    body: bytes


class NotKnownError(Exception):
    """These clouds do not have the requested resource."""


def ec2(request: Request) -> str:
    """Amazon EC2, DescribeInstances: filters apply to instances, on every page."""
    form = dict(parse_qsl(request.body.decode()))
    if form.get("Action") != "DescribeInstances":
        raise NotKnownError
    page = ET.parse(RECORDED / "aws" / f"DescribeInstances-{2 if form.get('NextToken') == PAGE_2 else 1}.xml").getroot()
    for instances in page.iter(f"{EC2}instancesSet"):
        for instance in list(instances):
            if not all(matches_ec2(instance, name, values) for name, values in ec2_filters(form)):
                instances.remove(instance)
    return ET.tostring(page, encoding="unicode")


def ec2_filters(form: dict[str, str]) -> Iterator[tuple[str, list[str]]]:
    for key, name in form.items():
        if match := re.fullmatch(r"Filter\.(\d+)\.Name", key):
            yield name, [value for other, value in form.items() if other.startswith(f"Filter.{match[1]}.Value.")]


def matches_ec2(instance: ET.Element, name: str, values: list[str]) -> bool:
    """Return whether an instance matches as in EC2: case matters, * stands for any characters, one value is enough."""
    if name.startswith("tag:"):
        tags = {
            item.findtext(f"{EC2}key"): item.findtext(f"{EC2}value")
            for item in instance.iterfind(f"{EC2}tagSet/{EC2}item")
        }
        found = tags.get(name[4:])
    else:
        fields = {
            "architecture": f"{EC2}architecture",
            "instance-state-name": f"{EC2}instanceState/{EC2}name",
            "private-ip-address": f"{EC2}privateIpAddress",
        }
        found = instance.findtext(fields[name])
    return found is not None and any(fnmatch.fnmatchcase(found, value) for value in values)


def compute_engine(request: Request) -> dict[str, Any]:
    """Google Compute Engine, instances.aggregatedList, with filters of the form `(field = value) (field = value)`."""
    if request.path != "/compute/v1/projects/my-project/aggregated/instances":
        raise NotKnownError
    wanted = re.findall(r"\(([\w.]+) = ([\w-]+)\)", request.query.get("filter", ""))
    if " ".join(f"({name} = {value})" for name, value in wanted) != request.query.get("filter", ""):
        raise NotKnownError
    number = 2 if request.query.get("pageToken") == PAGE_2 else 1
    page = json.loads((RECORDED / "gcp" / f"aggregated-instances-{number}.json").read_text())
    for scope in page["items"].values():
        scope["instances"] = [
            item for item in scope.get("instances", []) if all(value_at(item, *pair) for pair in wanted)
        ]
    return dict(page)


def value_at(item: Any, name: str, value: str) -> bool:
    for part in name.split("."):
        item = item.get(part, {})
    return bool(item == value)


def resource_manager(request: Request) -> dict[str, Any]:
    """Azure Resource Manager: GET of resources, and the /batch of many GETs that the plugin uses."""
    if request.path == "/batch" and request.method == "POST":
        answers = []
        for part in json.loads(request.body)["requests"]:
            url = urlsplit(part["url"])
            content = resource_manager(Request(request.host, "GET", url.path, dict(parse_qsl(url.query)), b""))
            answers.append({"httpStatusCode": 200, "name": part["name"], "content": content})
        return {"responses": answers}
    folder = RECORDED / "azure"
    if request.path.endswith("/my-resource-group/providers/Microsoft.Compute/virtualMachines"):
        number = 2 if request.query.get("$skipToken") == PAGE_2 else 1
        return dict(json.loads((folder / f"virtualMachines-{number}.json").read_text()))
    resources = {path.lower(): answer for path, answer in json.loads((folder / "resources.json").read_text()).items()}
    if request.path.lower() not in resources:
        raise NotKnownError
    return dict(resources[request.path.lower()])


def token(request: Request) -> dict[str, Any]:
    """Google's and Microsoft's login: every client gets a token without a meaning."""
    if request.path.endswith("/.well-known/openid-configuration"):
        place = f"https://{request.host}{request.path.removesuffix('/v2.0/.well-known/openid-configuration')}"
        return {
            "token_endpoint": f"{place}/oauth2/v2.0/token",
            "authorization_endpoint": f"{place}/oauth2/v2.0/authorize",
            "issuer": f"{place}/v2.0",
        }
    if request.path.endswith("/token"):
        return {"token_type": "Bearer", "expires_in": 3600, "access_token": "example"}
    raise NotKnownError


CLOUDS: dict[str, Callable[[Request], str | dict[str, Any]]] = {
    "ec2.eu-central-1.amazonaws.com": ec2,
    "www.googleapis.com": compute_engine,
    "oauth2.googleapis.com": token,
    "management.azure.com": resource_manager,
    "login.microsoftonline.com": token,
}


@dataclass
class Proxy:
    """The running proxy: the environment of its clients, its requests, and those that it refused."""

    environment: dict[str, str]
    requests: list[Request] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)


def certificate(folder: Path) -> Path:
    """Write a key and a certificate for all the clouds, which clients then trust."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "clouds of the tests")])
    now = dt.datetime.now(dt.timezone.utc)
    names = [*map(x509.DNSName, CLOUDS), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    usage = dict.fromkeys(
        "content_commitment key_encipherment data_encipherment key_agreement encipher_only decipher_only".split(), False
    )
    signed = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(hours=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.KeyUsage(digital_signature=True, key_cert_sign=True, crl_sign=True, **usage), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    path = folder / "clouds.pem"
    plain = serialization.NoEncryption()
    path.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain)
        + signed.public_bytes(serialization.Encoding.PEM)
    )
    return path


@contextmanager
def proxy(folder: Path) -> Iterator[Proxy]:
    """Run the clouds behind a proxy on loopback."""
    pem = certificate(folder)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem)
    running = Proxy({})

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        timeout = 30
        host = ""

        def log_message(self, *args: object) -> None:
            """Log nothing."""

        def do_CONNECT(self) -> None:
            self.host = self.path.rpartition(":")[0]
            if self.host not in CLOUDS:
                running.refused.append(self.path)
                self.send_error(403)
                return
            self.send_response(200)
            self.end_headers()
            # From here on the client speaks TLS, as if this was the cloud.
            self.connection = context.wrap_socket(self.connection, server_side=True)
            self.rfile = self.connection.makefile("rb")
            self.wfile = self.connection.makefile("wb", 0)
            self.close_connection = False

        def do_GET(self) -> None:
            url = urlsplit(self.path)
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            request = Request(self.host, self.command, url.path, dict(parse_qsl(url.query)), body)
            running.requests.append(request)
            try:
                found = CLOUDS[self.host](request)
            except (NotKnownError, KeyError):
                running.refused.append(f"{self.command} {self.host}{self.path} {body.decode(errors='replace')[:200]}")
                self.send_error(404)
                return
            data = (found if isinstance(found, str) else json.dumps(found)).encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/xml" if isinstance(found, str) else "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_POST = do_GET  # noqa: N815 - the name that http.server calls

        def finish(self) -> None:
            super().finish()
            self.connection.close()

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    running.environment.update(
        {
            **dict.fromkeys(("HTTPS_PROXY", "https_proxy"), f"http://127.0.0.1:{server.server_port}"),
            **dict.fromkeys(("AWS_CA_BUNDLE", "REQUESTS_CA_BUNDLE"), str(pem)),
        }
    )
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield running
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
