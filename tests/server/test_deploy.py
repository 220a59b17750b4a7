"""The examples of deployments: each is checked by its own tool, or used as it is."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from hashlib import sha256
from importlib.metadata import version
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Any

import httpx2
import pytest
import yaml

from framework.cli.serve import command
from framework.config.settings import ServerSettings
from tests.support.commands import ENVIRONMENT
from tests.support.config_maps import kubelet_writes
from tests.support.loopback import LOOPBACK
from tests.support.paths import ROOT
from tests.support.projects import agent, write
from tests.support.served import PATIENCE, served

FOLDER = ROOT / "examples/deploy"
KEY = "a-key-for-tests-only"
ONE = {"agents.d/one.yaml": agent("one", model="offline")}


def objects() -> dict[str, dict[str, Any]]:
    """The Kubernetes objects by kind."""
    loaded = list(yaml.safe_load_all((FOLDER / "kubernetes.yaml").read_text("utf-8")))
    assert len({one["kind"] for one in loaded}) == len(loaded)
    return {one["kind"]: one for one in loaded}


def pod() -> dict[str, Any]:
    spec: dict[str, Any] = objects()["Deployment"]["spec"]["template"]["spec"]
    return spec


def mount(folder: Path, data: dict[str, str], version: str) -> None:
    """Write the ConfigMap as the kubelet does, each key at the path that the volume gives it."""
    items = next(volume["configMap"]["items"] for volume in pod()["volumes"] if volume["name"] == "project")
    assert {item["key"] for item in items} == data.keys()
    kubelet_writes(folder, {item["path"]: data[item["key"]] for item in items}, version)


# --- Kubernetes


def test_an_edit_of_the_config_map_takes_effect_as_one_generation_without_a_restart(tmp_path: Path) -> None:
    (container,) = pod()["containers"]
    (folder := tmp_path / "project").mkdir()
    (folder / ".agentsd").touch()  # nothing can be written here, as the volume is read-only
    environment = {entry["name"]: entry.get("value", "x") for entry in container["env"]}
    environment["SERVER_KEY_SHA256"] = sha256(KEY.encode()).hexdigest()
    environment |= {"AGENTSD_SERVICE_HOST": "10.0.0.1", "AGENTSD_PORT": "tcp://10.0.0.1:80"}  # service links
    environment["AGENTSD_STORE__URL"] = f"sqlite:///{tmp_path}/state/state.db"
    data = dict(objects()["ConfigMap"]["data"])
    mount(folder, data, "1")
    program, verb, path, *options = container["args"]
    assert (program, verb, path) == ("agentsd", "serve", container["volumeMounts"][0]["mountPath"])
    with served(tmp_path, *options, path="project", key=KEY, environment=environment) as server:
        before = server.get("/agent/config")
        assert (before["agents"], before["problems"]) == (["assistant"], [])
        assert httpx2.get(f"{server.url}/agent/config", timeout=PATIENCE, **LOOPBACK).status_code == 401
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            path = container[probe]["httpGet"]["path"]
            assert httpx2.get(server.url + path, timeout=PATIENCE, **LOOPBACK).status_code == 200, probe
        data["assistant.yaml"] = data["assistant.yaml"].replace("Answers questions", "Answers all questions")
        data["system.j2"] = "You are terse.\n"
        with server.event_stream() as events:
            mount(folder, data, "2")
            event = next(events)
        assert (event["event"], event["generation"], event["problems"]) == ("config_reloaded", 2, [])
        assert server.get("/agent/agents")["agents"][0]["description"].startswith("Answers all questions")
        other = sha256(b"another-key-for-tests").hexdigest()
        data["agentsd.yaml"] = data["agentsd.yaml"].replace("${SERVER_KEY_SHA256}", other)
        with server.event_stream() as events:
            mount(folder, data, "3")
            assert list(events) == [], "its key was replaced"
        server.key = "another-key-for-tests"
        assert server.get("/agent/config")["generation"] == 3
        assert server.stop() == 0


def test_the_pod_has_no_rights_and_time_to_stop() -> None:
    spec, (container,) = pod(), pod()["containers"]
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["automountServiceAccountToken"] is False
    assert spec["enableServiceLinks"] is False, "variables of the Service begin with AGENTSD_"
    assert container["image"] == f"agentsd:{version('agentsd')}"
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert not any("subPath" in one for one in container["volumeMounts"]), "the kubelet never updates such files"
    assert {one["name"] for one in container["volumeMounts"]} == {one["name"] for one in spec["volumes"]}
    assert spec["terminationGracePeriodSeconds"] >= container["lifecycle"]["preStop"]["sleep"]["seconds"] + 30


def test_the_objects_refer_to_each_other() -> None:
    found = objects()
    labels = found["Deployment"]["spec"]["template"]["metadata"]["labels"]
    assert found["Deployment"]["spec"]["selector"]["matchLabels"] == found["Service"]["spec"]["selector"] == labels
    (container,) = pod()["containers"]
    (port,) = container["ports"]
    assert found["Service"]["spec"]["ports"][0]["targetPort"] == port["name"]
    assert port["containerPort"] == ServerSettings().port
    claim = next(
        volume["persistentVolumeClaim"]["claimName"] for volume in pod()["volumes"] if volume["name"] == "state"
    )
    assert claim == found["PersistentVolumeClaim"]["metadata"]["name"]


def test_the_key_of_the_example_belongs_to_a_tenant() -> None:
    entries = yaml.safe_load(objects()["ConfigMap"]["data"]["agentsd.yaml"])["server"]["api_keys"]
    assert [(entry["tenant"], "admin" in entry["roles"]) for entry in entries] == [("acme", False)]


def test_the_network_policy_applies_to_the_pod_and_allows_no_private_address() -> None:
    policy, deployment = objects()["NetworkPolicy"]["spec"], objects()["Deployment"]["spec"]["template"]
    assert policy["podSelector"]["matchLabels"] == deployment["metadata"]["labels"]
    assert sorted(policy["policyTypes"]) == ["Egress", "Ingress"]
    assert all(rule["from"] for rule in policy["ingress"])
    blocks = [to["ipBlock"] for rule in policy["egress"] for to in rule["to"] if "ipBlock" in to]
    for text in ("10.1.2.3", "100.64.0.1", "169.254.169.254", "172.31.0.1", "192.168.1.1", "127.0.0.1", "fd00::1"):
        address = ip_address(text)
        allowing = [block for block in blocks if address in ip_network(block["cidr"])]
        assert allowing
        assert all(any(address in ip_network(one) for one in block["except"]) for block in allowing), text


# --- systemd


def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    if not shutil.which("systemd-analyze"):
        pytest.skip("no systemd-analyze")
    text = (FOLDER / "agentsd.service").read_text("utf-8")
    unit = tmp_path / "agentsd.service"
    unit.write_text(text.replace("/opt/agentsd/bin/agentsd", str(Path(sys.executable).with_name("agentsd"))))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(unit)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_the_unit_runs_a_valid_command_without_rights() -> None:
    lines = (FOLDER / "agentsd.service").read_text("utf-8").splitlines()
    keys = dict(line.split("=", 1) for line in lines if "=" in line and not line.startswith("#"))
    _, verb, *arguments = shlex.split(keys["ExecStart"])
    assert verb == "serve"
    assert command.make_context("serve", arguments).params["log_format"] == "json"
    assert keys["RestartPreventExitStatus"] == "78"
    assert int(keys["TimeoutStopSec"]) >= 30
    assert (keys["User"], keys["CapabilityBoundingSet"], keys["NoNewPrivileges"]) == ("agentsd", "", "yes")


# --- containers


def container_lines() -> list[tuple[str, str]]:
    """Instructions of the Containerfile with their arguments."""
    text = re.sub(r"^#.*\n", "", (FOLDER / "Containerfile").read_text("utf-8"), flags=re.MULTILINE)
    return [tuple(line.split(" ", 1)) for line in text.replace("\\\n", "").splitlines() if line]  # type: ignore[misc]  # each line has two parts


def test_the_image_has_no_root_no_secret_and_only_existing_files() -> None:
    found = container_lines()
    assert [int(text) > 0 for name, text in found if name == "USER"] == [True]
    copied = [text.split()[:-1] for name, text in found if name == "COPY" and not text.startswith("--from")]
    assert [path for paths in copied for path in paths if not (ROOT / path).exists()] == []
    assert not any(re.search("key|token|secret|password", text, re.IGNORECASE) for name, text in found if name == "ENV")
    (started,) = (json.loads(text) for name, text in found if name == "CMD")
    assert started[:2] == ["agentsd", "serve"]


def test_the_image_has_all_that_the_wheel_is_built_from() -> None:
    copied = {path for name, text in container_lines() if name == "COPY" for path in text.split()[:-1]}
    build = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["hatch"]["build"]
    wheel = build["targets"]["wheel"]
    assert {*wheel["packages"], *wheel["force-include"], "pyproject.toml", "hatch_build.py"} <= copied


def test_hadolint_accepts_the_containerfile() -> None:
    done = subprocess.run(
        [Path(sys.executable).with_name("hadolint"), FOLDER / "Containerfile"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_image_is_built_from_pinned_images() -> None:
    bases = [text.split()[0] for name, text in container_lines() if name == "FROM"]
    assert len(bases) == 2
    assert all(re.search(r":\d+\.\d+\.\d+-[\w-]+@sha256:[0-9a-f]{64}$", base) for base in bases), bases


def test_the_health_check_of_the_image_sees_whether_the_server_responds(tmp_path: Path) -> None:
    (text,) = (text for name, text in container_lines() if name == "HEALTHCHECK")
    check = json.loads(text[text.index("[") :])
    (tmp_path / "urllib").mkdir()  # as a tool may write it; with its import, the check would execute it
    (tmp_path / "urllib/__init__.py").write_text("raise SystemExit('executed')")
    with served(write(tmp_path, ONE)) as server:
        words = [sys.executable, *check[1:-1], check[-1].replace("8321", str(server.port))]
        options: Any = {"check": False, "env": ENVIRONMENT, "timeout": PATIENCE, "cwd": tmp_path}
        assert subprocess.run(words, **options).returncode == 0
        server.stop()
        gone = subprocess.run(words, stderr=subprocess.DEVNULL, **options)
        assert gone.returncode != 0


# --- Prometheus


def test_prometheus_accepts_the_configuration(tmp_path: Path) -> None:
    config = yaml.safe_load((FOLDER / "prometheus.yml").read_text("utf-8"))
    assert [(FOLDER / path).resolve().is_file() for path in config["rule_files"]] == [True, True]
    assert config["scrape_configs"][0]["metrics_path"] == "/metrics"
    if not shutil.which("promtool"):
        pytest.skip("no promtool")
    (tmp_path / "deploy").mkdir()
    shutil.copytree(ROOT / "examples/monitoring", tmp_path / "monitoring")
    shutil.copy(FOLDER / "server-alerts.yaml", tmp_path / "deploy")
    text = (FOLDER / "prometheus.yml").read_text("utf-8").replace("/etc/prometheus", str(tmp_path))
    (tmp_path / "agentsd-key").write_text(KEY)
    (tmp_path / "deploy/prometheus.yml").write_text(text)
    subprocess.run(["promtool", "check", "config", str(tmp_path / "deploy/prometheus.yml")], check=True)


def test_the_alert_rules_use_metrics_and_labels_that_a_server_has(tmp_path: Path) -> None:
    rules = yaml.safe_load((FOLDER / "server-alerts.yaml").read_text("utf-8"))["groups"][0]["rules"]
    with served(write(tmp_path, ONE), key="", environment={}) as server:
        server.request("GET", "/metrics", headers={"origin": "https://example.com"})
        scraped = server.request("GET", "/metrics").text
    for rule in rules:
        plain = re.sub(r'"[^"]*"|\[[^\]]*\]', "", rule["expr"])
        for name, selectors in re.findall(r"\b((?:http|agentsd|process)_\w+)(?:\{([^}]*)\})?", plain):
            if name.startswith("http_r"):  # a label
                continue
            assert re.search(rf"^{name}[{{ ]", scraped, re.MULTILINE), (rule["alert"], name)
            for label in re.findall(r"(\w+)\s*(?:=~|!=|=)", selectors):
                assert label == "job" or f'{label}="' in scraped, (rule["alert"], label)
