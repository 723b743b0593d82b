"""What deploy/ has for Kubernetes, Prometheus and Grafana fits its schemas and the collector: fields, flags, metrics."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import ssl
import subprocess
from pathlib import Path
from typing import Any

import pytest

yaml = pytest.importorskip("yaml")

ROOT = Path(__file__).resolve().parents[1]
BUILD = Path(os.environ.get("STATCOLLECT_BUILD_DIR", ROOT / "build" / "release"))
CHART = ROOT / "deploy/helm/statcollect"
PLAIN = ROOT / "deploy/kubernetes/statcollect.yaml"
VARIANTS: dict[str, list[str]] = {
    "plain": [],
    "secrets": ["--set", "tls.secretName=collector-tls,tokens.secretName=collector-tokens"],
    "three": ["--values", str(ROOT / "deploy/helm/three-collectors.yaml")],
    "three with TLS to the store": ["--values", str(ROOT / "deploy/helm/three-collectors.yaml"), "--set", "store.caKey=ca.pem"],
    "external store": ["--set", "store.secretName=engine"],
    "all": [
        "--set", "image.repository=registry.example/statcollect,image.tag=x,storage.className=fast,retention=30d,maxDisk=200GiB",
        "--set", "extraArgs={--log-level=debug},nodeSelector.disk=ssd,podAnnotations.a=b,imagePullSecrets[0].name=pull",
        "--set", "tolerations[0].operator=Exists",
    ],
}  # fmt: skip


def helm(*arguments: str, code: int | None = 0) -> str:
    program = shutil.which("helm") or shutil.which("helm", path=str(ROOT / ".venv/bin"))
    if program is None:
        pytest.skip(
            "helm is not installed; scripts/setup.sh --for test installs it. The committed manifests are checked all the same"
        )
    done = subprocess.run([program, *arguments], capture_output=True, text=True, timeout=60, check=False)
    assert code is None or done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def render(name: str) -> str:
    return helm("template", "statcollect", str(CHART), "--namespace", "statcollect", "--kube-version", "1.30.0", *VARIANTS[name])


def documents(text: str) -> list[dict[str, Any]]:
    return [document for document in yaml.safe_load_all(text) if document]


def check_schema(document: dict[str, Any]) -> None:
    """Against the schemas of Kubernetes' own API, which refuse fields that do not exist."""
    validate = pytest.importorskip("kubernetes_validate", reason="scripts/setup.sh --for test installs kubernetes-validate")
    validate.validate(document, "1.30", strict=True)


def of_kind(found: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    (only,) = [document for document in found if document["kind"] == kind]
    return only


@pytest.mark.parametrize("path", sorted((ROOT / "deploy/kubernetes").glob("*.yaml")), ids=lambda path: path.name)
def test_manifests_fit_the_schemas(path: Path) -> None:
    for document in documents(path.read_text(encoding="utf-8")):
        check_schema(document)


def test_a_wrong_field_does_not_fit_the_schemas() -> None:
    service = of_kind(documents(PLAIN.read_text(encoding="utf-8")), "Service")
    service["spec"]["portz"] = []
    with pytest.raises(Exception, match="portz"):
        check_schema(service)


@pytest.mark.parametrize(("name", "path"), [("plain", PLAIN), ("three", PLAIN.with_name("three-collectors.yaml"))])
def test_the_committed_manifests_are_those_of_the_chart(name: str, path: Path) -> None:
    rendered = render(name)
    committed = path.read_text(encoding="utf-8")
    assert documents(committed)[1:] == documents(rendered), "run: scripts/kubernetes.sh"


@pytest.mark.parametrize("name", VARIANTS)
def test_the_chart_renders_what_fits_the_schemas(name: str) -> None:
    found = documents(render(name))
    for document in found:
        check_schema(document)
    pod = of_kind(found, "StatefulSet")["spec"]["template"]["spec"]
    mounted = {mount["name"] for each in (*pod["containers"], *pod.get("initContainers", [])) for mount in each["volumeMounts"]}
    assert mounted == {volume["name"] for volume in pod.get("volumes", [])} | {"data"}


def test_mounted_secrets_are_closed_to_other_users() -> None:
    """0400 becomes 0440 for the group of the pod, which common/secret_mode.h accepts."""
    pod = of_kind(documents(render("secrets")), "StatefulSet")["spec"]["template"]["spec"]
    assert pod["securityContext"]["fsGroup"] == pod["securityContext"]["runAsGroup"]
    secrets = {volume["name"]: volume["secret"]["defaultMode"] for volume in pod["volumes"]}
    assert secrets == {"tls": 0o400, "tokens": 0o400}
    assert "--token-file=/secrets/tokens/tokens" in pod["containers"][0]["args"]


def test_the_chart_is_linted_and_refuses_wrong_values() -> None:
    assert "0 chart(s) failed" in helm("lint", "--strict", str(CHART))
    for wrong, said in (
        ("storage.size=much", "storage.size"), ("tls.secretName=a", "expected both"), ("replicas=2", "expected a store that they share"), ("replicas=0", "replicas"), ("maxDisk=lots", "maxDisk"),
    ):  # fmt: skip
        answer = helm("template", "x", str(CHART), "--kube-version", "1.30.0", "--set", wrong, code=None)
        assert "Error" in answer and said in answer.replace("/", "."), answer


def test_the_pods_commands_make_certificates_for_the_service_and_start(tmp_path: Path) -> None:
    """The init container's script, then the container's arguments, with other folders and ports; twice, as after a restart."""
    pod = of_kind(documents(PLAIN.read_text(encoding="utf-8")), "StatefulSet")["spec"]["template"]["spec"]
    script = pod["initContainers"][0]["command"]
    assert script[:2] == ["/bin/sh", "-ec"]
    data = tmp_path / "volume"
    (data / "lost+found").mkdir(parents=True)
    environment = {"PATH": f"{BUILD / 'bin'}:/usr/bin:/bin"}
    here = {"/var/lib/statcollect": str(data), "0.0.0.0:7433": "0.0.0.0:0", "0.0.0.0:7434": "127.0.0.1:0"}
    authority = ""
    for _ in range(2):
        command = [*script[:2], script[2].replace("/var/lib/statcollect", str(data))]
        subprocess.run(command, env=environment, check=True, capture_output=True, timeout=60)
        arguments = [
            re.sub("|".join(map(re.escape, here)), lambda found: here[found[0]], word) for word in pod["containers"][0]["args"]
        ]
        with (tmp_path / "errors").open("w") as errors:
            process = subprocess.Popen(
                ["statcollectord", *arguments], env=environment, stdout=subprocess.PIPE, stderr=errors, text=True
            )
        assert process.stdout is not None
        line = process.stdout.readline()
        try:
            found = re.search(r"http [\d.]+:(\d+)", line)
            assert found, line + (tmp_path / "errors").read_text()
            context = ssl.create_default_context(cafile=str(data / "tls/ca.pem"))
            raw = socket.create_connection(("127.0.0.1", int(found[1])), timeout=10)
            with context.wrap_socket(raw, server_hostname="statcollect.statcollect.svc") as secure:
                secure.sendall(f"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1:{found[1]}\r\nConnection: close\r\n\r\n".encode())
                assert b"200 OK" in secure.recv(4096)
        finally:
            process.send_signal(signal.SIGTERM)
            assert process.wait(timeout=20) == 0
        for file in ("ca.pem", "agents.token", "statctl.token"):  # deploy/README.md copies these
            assert (data / "tls" / file).is_file()
        text = (data / "tls/ca.pem").read_text()
        assert authority in ("", text), "a restart makes no new authority"
        authority = text


def test_the_collector_knows_the_flags_and_the_pod_is_locked_down() -> None:
    found = documents(PLAIN.read_text(encoding="utf-8"))
    stateful = of_kind(found, "StatefulSet")
    pod = stateful["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    usage = subprocess.run([BUILD / "bin/statcollectord", "--help"], capture_output=True, text=True, check=True).stdout
    for argument in container["args"]:
        assert f"{argument.partition('=')[0]} " in usage, argument
    assert stateful["spec"]["replicas"] == 1
    assert pod["securityContext"]["runAsNonRoot"] is True
    for each in (container, *pod["initContainers"]):
        assert each["securityContext"]["readOnlyRootFilesystem"] is True
        assert each["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert {container[probe]["httpGet"]["path"] for probe in ("livenessProbe", "startupProbe")} == {"/healthz"}
    assert container["readinessProbe"]["httpGet"]["path"] == "/readyz"
    service = of_kind(found, "Service")
    assert service["spec"]["clusterIP"] == "None"
    assert stateful["spec"]["serviceName"] == service["metadata"]["name"]
    user = re.search(r"useradd .*--uid (\d+)", (ROOT / "deploy/Containerfile").read_text(encoding="utf-8"))
    assert user and int(user[1]) == pod["securityContext"]["runAsUser"]


def test_three_collectors_share_a_store_whose_address_no_command_line_shows(tmp_path: Path) -> None:
    found = documents(render("three with TLS to the store"))
    stateful, service = of_kind(found, "StatefulSet"), of_kind(found, "Service")
    assert stateful["spec"]["replicas"] == 3 and "clusterIP" not in service["spec"]
    assert of_kind(found, "PodDisruptionBudget")["spec"]["maxUnavailable"] == 1
    pod = stateful["spec"]["template"]["spec"]
    for secret, name, content in (
        ("store", "dsn", "clickhouse://127.0.0.1:1/engine_of_the_secret"), ("store", "ca.pem", "authority"),
    ):  # fmt: skip
        (tmp_path / secret).mkdir(exist_ok=True)
        (tmp_path / secret / name).write_text(content)
    script = pod["initContainers"][0]["command"][2].replace("/secrets/", f"{tmp_path}/")
    (tmp_path / "run").mkdir()
    subprocess.run(["/bin/sh", "-ec", script.replace("/run/statcollect", f"{tmp_path}/run")], check=True, timeout=60)
    for name in ("store.toml", "store-ca.pem"):
        assert (tmp_path / "run" / name).stat().st_mode & 0o777 == 0o600, name
    (container,) = pod["containers"]
    assert "clickhouse" not in " ".join(container["args"])
    config = container["args"][0].replace("/run/statcollect", f"{tmp_path}/run")
    done = subprocess.run(
        [BUILD / "bin/statcollectord", config, "--data-dir", tmp_path / "data", "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0"],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 2 and "127.0.0.1:1" in done.stderr and "is it running" in done.stderr, done.stderr


def documented_metrics() -> set[str]:
    return set(re.findall(r"`(statcollect_[a-z_]+)[`{]", (ROOT / "docs/metrics.md").read_text(encoding="utf-8")))


def used_metrics(text: str) -> set[str]:
    return set(re.findall(r"\bstatcollect_[a-z_]+\b", text))


def test_the_dashboard_and_the_rules_use_metrics_that_exist() -> None:
    dashboard = json.loads((ROOT / "deploy/grafana.json").read_text(encoding="utf-8"))
    expressions = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", [])]
    queries = [str(variable["query"]) for variable in dashboard["templating"]["list"]]
    rules = yaml.safe_load((ROOT / "deploy/alerts.yml").read_text(encoding="utf-8"))
    expressions += [rule["expr"] for group in rules["groups"] for rule in group["rules"]]
    used = used_metrics("\n".join(expressions + queries))
    assert len(used) > 20
    assert used <= documented_metrics(), used - documented_metrics()
    # Counters are shown as rates, never as themselves.
    for expression in expressions:
        for name in re.findall(r"statcollect_[a-z_]+_total", expression):
            assert re.search(rf"(rate|increase)\({name}", expression), expression


def test_the_panels_of_the_dashboard_do_not_overlap() -> None:
    dashboard = json.loads((ROOT / "deploy/grafana.json").read_text(encoding="utf-8"))
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])
    taken: set[tuple[int, int]] = set()
    for panel in dashboard["panels"]:
        place = panel["gridPos"]
        cells = {(x, y) for x in range(place["x"], place["x"] + place["w"]) for y in range(place["y"], place["y"] + place["h"])}
        assert place["x"] + place["w"] <= 24 and not cells & taken, panel["title"]
        taken |= cells
