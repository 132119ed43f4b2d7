"""The files in deploy/: they name paths, options, limits and metrics that the server has."""

import json
import re
import shlex
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

import httpx
import pytest
import yaml
from click.testing import CliRunner
from served import post, serving

from elmokit.cli import serve as cli_serve
from elmokit.serve import server
from elmokit.serve.settings import Settings

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
DOCKERFILE = (DEPLOY / "Dockerfile").read_text()
SYSTEMD = (DEPLOY / "elmokit.service").read_text()
(DEPLOYMENT, SERVICE, _) = yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text())
COMPOSE = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
POD = DEPLOYMENT["spec"]["template"]["spec"]
(CONTAINER,) = POD["containers"]
ENTRYPOINT = json.loads(re.search(r"^ENTRYPOINT (.*)$", DOCKERFILE, re.MULTILINE)[1])
IMAGE_COMMAND = json.loads(re.search(r"^CMD (\[.*)$", DOCKERFILE, re.MULTILINE)[1])
UNIT_COMMAND = shlex.split(re.search(r"^ExecStart=(.*)$", SYSTEMD, re.MULTILINE)[1])
COMMANDS = {
    "docker": [*ENTRYPOINT, *IMAGE_COMMAND],
    "compose": [*ENTRYPOINT, *COMPOSE["elmokit"]["command"]],
    "kubernetes": [*ENTRYPOINT, *CONTAINER["args"]],
    "systemd": ["elmokit", *UNIT_COMMAND[1:]],
}


def settings_of(command, monkeypatch):
    calls = []
    monkeypatch.setattr(server, "serve", lambda load, settings, **more: calls.append((settings, more["name"])))
    assert command[:2] == ["elmokit", "serve"]
    result = CliRunner().invoke(cli_serve.serve, command[2:])
    assert result.exit_code == 0, result.output
    return calls[0]


@pytest.mark.parametrize("name", COMMANDS)
def test_the_command_serves_the_english_model(name, monkeypatch):
    settings, model = settings_of(COMMANDS[name], monkeypatch)
    assert (settings.port, model) == (8080, "en")
    assert settings.host == ("127.0.0.1" if name == "systemd" else "0.0.0.0")


@pytest.mark.parametrize(
    ("name", "seconds"),
    [
        ("compose", int(COMPOSE["elmokit"]["stop_grace_period"].removesuffix("s"))),
        ("kubernetes", POD["terminationGracePeriodSeconds"]),
        ("systemd", int(re.search(r"^TimeoutStopSec=(\d+)$", SYSTEMD, re.MULTILINE)[1])),
    ],
)
def test_a_server_is_not_killed_before_it_has_answered(name, seconds, monkeypatch):
    settings, _ = settings_of(COMMANDS[name], monkeypatch)
    assert seconds > settings.drain + settings.deadline + settings.client_timeout + server.SHUTDOWN_SECONDS


def test_probes_and_health_checks_ask_what_the_server_answers(client):
    probes = [CONTAINER[name]["httpGet"]["path"] for name in ("startupProbe", "readinessProbe", "livenessProbe")]
    assert probes == ["/ready", "/ready", "/health"]
    probes.append(re.search(r"http://127.0.0.1:8080(/\w+)", DOCKERFILE)[1])
    for path in probes:
        assert client.get(path).status_code == 200
    assert CONTAINER["ports"][0]["containerPort"] == 8080
    assert SERVICE["spec"]["selector"] == DEPLOYMENT["spec"]["template"]["metadata"]["labels"]


def test_the_image_is_made_of_files_that_exist_and_runs_without_rights():
    ignored = (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines()
    sources = [line.split()[1:-1] for line in DOCKERFILE.splitlines() if re.match(r"COPY (?!--from)", line)]
    for name in (name for line in sources for name in line):
        assert (ROOT / name).exists(), name
        assert f"!{name}" in ignored, name
    user = re.findall(r"^USER (\d+)$", DOCKERFILE, re.MULTILINE)
    assert user == [str(POD["securityContext"]["runAsUser"])] == ["10001"]
    assert CONTAINER["securityContext"]["readOnlyRootFilesystem"] is True
    assert COMPOSE["elmokit"]["read_only"] is True
    assert POD["securityContext"]["runAsNonRoot"] is True


def test_the_dashboard_shows_metrics_that_the_server_has(client):
    post(client, "/embed", {"inputs": "a"})
    text = client.get("/metrics").text
    names = set(re.findall(r"^([a-z_]+)(?:\{| )", text, re.MULTILINE))
    labels = set(re.findall(r'[{,](\w+)="', text)) | {"job", "instance", "le"}
    board = json.loads((DEPLOY / "grafana.json").read_text())
    queries = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    used = {name for query in queries for name in re.findall(r"\b(?:elmokit|process)_[a-z_]+", query)}
    assert used <= names
    counters = {
        name for name in names if re.fullmatch(r"elmokit_[a-z_]+(?<!_created)(?<!_bucket)(?<!_sum)(?<!_count)", name)
    }
    assert counters <= used, "every metric is shown"
    grouped = {
        label.strip()
        for query in queries
        for group in re.findall(r"by \(([^)]*)\)", query)
        for label in group.split(",")
    }
    assert grouped <= labels
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in board["panels"]]
    assert len(set(places)) == len(places)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_systemd_accepts_the_unit(tmp_path):
    unit = tmp_path / "elmokit.service"
    unit.write_text(SYSTEMD.replace("/opt/elmokit/bin/elmokit", shutil.which("true")))
    done = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


NGINX = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")


@pytest.mark.skipif(NGINX is None, reason="nginx is not installed")
def test_nginx_passes_requests_on(model, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with serving(model, Settings(api_key="key", drain=0.0)) as client:
        site = (DEPLOY / "nginx.conf").read_text()
        site = site.replace("server elmokit:8080", f"server 127.0.0.1:{client.address[1]}")
        (tmp_path / "site.conf").write_text(site.replace("listen 80;", f"listen 127.0.0.1:{port};"))
        (tmp_path / "nginx.conf").write_text(
            f"pid {tmp_path}/pid; error_log {tmp_path}/error.log; daemon off; events {{}}\n"
            f"http {{ access_log off; client_body_temp_path {tmp_path}/body; proxy_temp_path {tmp_path}/proxy;\n"
            f"fastcgi_temp_path {tmp_path}/f; uwsgi_temp_path {tmp_path}/u; scgi_temp_path {tmp_path}/s;\n"
            f"include {tmp_path}/site.conf; }}\n"
        )
        proxy = subprocess.Popen([NGINX, "-c", tmp_path / "nginx.conf", "-e", tmp_path / "error.log"])
        try:
            url, asked = f"http://127.0.0.1:{port}", {"authorization": "Bearer key"}
            for _ in range(200):
                with socket.socket() as probe:
                    if probe.connect_ex(("127.0.0.1", port)) == 0:
                        break
                time.sleep(0.05)
            answer = httpx.post(f"{url}/embed", json={"inputs": "The bank lent money."}, headers=asked, timeout=60)
            assert answer.status_code == 200, answer.text
            assert len(answer.headers["x-request-id"]) == 32, "the id of nginx"
            assert httpx.get(f"{url}/ready", timeout=60).json() == {"status": "ready"}
            assert httpx.get(f"{url}/metrics", headers=asked, timeout=60).status_code == 404
            assert (
                httpx.post(f"{url}/embed", json={"inputs": "a" * 2_200_000}, headers=asked, timeout=60).status_code
                == 413
            )
        finally:
            proxy.send_signal(signal.SIGTERM)
            proxy.wait(30)
