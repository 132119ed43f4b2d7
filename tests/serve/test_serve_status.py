"""The endpoints about the server: info, health, metrics and pages; and its log."""

import hashlib
import html
import json
import logging
import re
import shlex
from pathlib import Path

from served import WORDS, Capitals, error_of, post, serving

from elmokit.serve.observe import JSONLines
from elmokit.serve.routes import page as page_routes
from elmokit.serve.settings import Settings


def test_info_names_the_model_and_the_limits(client):
    info = client.get("/info").json()
    assert info["model_id"] == "tiny"
    assert info["model_type"] == {"embedding": {"pooling": "mean"}}
    assert (info["num_layers"], info["vector_dim"], info["vocabulary_size"]) == (3, 16, len(WORDS))
    assert (info["max_input_length"], info["max_client_batch_size"]) == (512, 1024)
    assert (info["tasks"], info["tokenizer"]) == (["capitals"], "treebank")


def test_a_batcher_that_ended_is_not_healthy(model):
    with serving(model) as client:
        client.app.state.engine.batcher.close()
        error_of(client.get("/health"), 503, "Unhealthy")


def test_the_log_is_json_and_holds_no_text_of_users(client, caplog):
    secret = "xylophone"
    with caplog.at_level(logging.INFO, "elmokit"):
        request_id = post(client, "/embed", {"inputs": secret}).headers["x-request-id"]
        client.post("/embed", json={"inputs": secret, secret: 1})
        client.post(f"/{secret}", json={})
        client.get(f"/tasks/{secret}?{secret}")
        client.request(secret.upper(), "/embed")
        client.post("/substitutes", json={"inputs": secret})
    lines = [json.loads(JSONLines().format(record)) for record in caplog.records]
    assert secret not in json.dumps(lines).lower()
    (first,) = [line for line in lines if line.get("id") == request_id]
    assert (first["route"], first["status"], first["sentences"], first["tokens"]) == ("/embed", 200, 1, 1)
    assert first["ms"] > 0
    assert secret not in client.get("/metrics").text.lower()


def test_metrics_count_what_happened(client):
    before = client.get("/metrics").text
    post(client, "/embed", {"inputs": ["a b c", "d"]})
    after = client.get("/metrics").text

    def value(text, name):
        found = re.search(rf"^{re.escape(name)} (\S+)$", text, re.MULTILINE)
        return float(found[1]) if found else 0.0

    requests = 'elmokit_requests_total{route="/embed",status="200"}'
    assert value(after, requests) - value(before, requests) == 1
    tokens = 'elmokit_tokens_total{lane="vectors"}'
    assert value(after, tokens) - value(before, tokens) == 4 + 2 * 2  # the boundaries are read too
    assert value(after, "elmokit_queue_tokens") == 0
    assert value(after, "elmokit_requests_in_flight") == 1


def test_the_reference_page_needs_nothing_from_elsewhere(client):
    page = client.get("/docs")
    assert page.headers["content-type"].startswith("text/html")
    assert not re.search(r"""(src|href)\s*=\s*["']?(https?:)?//""", page.text)
    assert "<script" not in page.text
    for path in client.get("/openapi.json").json()["paths"]:
        assert f"<code>{path}</code>" in page.text


def test_the_reference_begins_with_commands_that_work(model, index):
    settings = Settings(port=0, drain=0.0, api_key="secret")
    with serving(model, settings, name="tiny", tasks={"tiny": Capitals()}, index=index) as client:
        page = client.get("/docs", headers={"authorization": "Bearer secret"}).text
        commands = re.findall(r'<h3 class="name">.*?</h3><pre class="curl"><code>(.*?)</code>', page, flags=re.DOTALL)
        assert len(commands) == sum(map(len, client.app.openapi()["paths"].values()))
        for command in map(html.unescape, commands):
            name, silent, url, *rest = shlex.split(command)
            assert (name, silent) == ("curl", "-s")
            options = list(zip(rest[::2], rest[1::2], strict=True))
            headers = dict(text.split(": ", 1) for option, text in options if option == "-H")
            assert headers["Authorization"] == "Bearer $ELMOKIT_API_KEY"
            headers["Authorization"] = "Bearer secret"
            body = [text for option, text in options if option == "-d"]
            url = url.replace("NAME", "tiny")
            response = client.post(url, content=body[0], headers=headers) if body else client.get(url, headers=headers)
            assert response.status_code == 200, (command, response.text)


def test_the_page_is_served_file_by_file(model, tmp_path, monkeypatch):
    (tmp_path / "lib").mkdir()
    (tmp_path / "index.html").write_text("<p>explorer</p>")
    (tmp_path / "lib" / "chart.js").write_text("1")
    monkeypatch.setattr(page_routes, "PAGE", tmp_path)
    with serving(model, Settings(api_key="key", drain=0.0)) as client:
        page = client.get("/")
        assert page.text == "<p>explorer</p>"
        assert "default-src 'self'" in page.headers["content-security-policy"]
        assert client.get("/lib/chart.js").text == "1"
        for path in ("/lib/../index.html", "/%2e%2e/etc/passwd", "/lib/"):
            assert client.get(path, headers={"authorization": "Bearer key"}).status_code in (200, 404)
        assert client.get("/lib/").status_code == 401


def test_what_was_written_elsewhere_is_shipped_unchanged_with_its_licence():
    vendor = Path(page_routes.PAGE) / "vendor"
    sums = {name: digest for digest, name in re.findall(r"([0-9a-f]{64})  (\S+)", (vendor / "README.md").read_text())}
    assert set(sums) == {path.name for path in vendor.glob("*.js")}
    for name, digest in sums.items():
        assert hashlib.sha256((vendor / name).read_bytes()).hexdigest() == digest
        assert "Permission is hereby granted" in (vendor / name.replace(".js", ".LICENSE.txt")).read_text()


def test_the_page_names_no_other_server():
    files = [path for path in Path(page_routes.PAGE).rglob("*") if path.suffix in (".html", ".css", ".js")]
    own = [path for path in files if path.parent.name != "vendor"]
    assert len(own) > 10
    for path in own:
        assert "//" not in re.sub(r"http://www.w3.org/\S+|(^|\s)// .*", "", path.read_text(), flags=re.MULTILINE), path
        assert not re.search(r"<script>|\son\w+=", path.read_text()) or path.suffix == ".js"
