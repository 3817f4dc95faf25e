"""The manifests of deploy/kubernetes: valid against the published schemas, and unable to hold a worker."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy" / "kubernetes"
# Native sidecars are on by default since 1.29.
VERSIONS = ("1.29", kubernetes_validate.latest_version())
NAME = "routing-hint-sidecar"

# Those in use, of DynamoComponentDeploymentSharedSpec in ai-dynamo/dynamo,
# deploy/operator/api/v1alpha1/dynamocomponentdeployment_types.go; its schema of 1.6 MB is in no package.
_FIELDS_OF_A_SERVICE = {"componentType", "subComponentType", "replicas", "resources", "extraPodSpec"}

Manifest = dict[str, Any]


def _load(name: str) -> Manifest:
    manifest: Manifest = yaml.safe_load((FOLDER / name).read_text())
    return manifest


def _make_pods() -> dict[str, Manifest]:
    """Every pod that the manifests describe, by where it comes from."""
    pods = {name: _load(name)["spec"]["template"]["spec"] for name in ("worker.yaml", "daemonset.yaml")}
    for service, described in _load("dynamo.yaml")["spec"]["services"].items():
        spec = dict(described["extraPodSpec"])
        # The operator makes this the pod's container; its name and the GPUs come from the service.
        spec["containers"] = [{"name": "main", **spec.pop("mainContainer")}]
        pods[f"dynamo.yaml {service}"] = spec
    return pods


PODS = _make_pods()
WORKER_PODS = {
    name: spec for name, spec in PODS.items() if name != "daemonset.yaml" and "Frontend" not in name
}


def _find_sidecar(spec: Manifest) -> Manifest:
    containers = [*spec.get("initContainers", ()), *spec["containers"]]
    (found,) = [container for container in containers if container["name"] == NAME]
    sidecar: Manifest = found
    return sidecar


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", ["policy.yaml", "worker.yaml", "daemonset.yaml"])
def test_manifests_have_only_fields_that_kubernetes_has(name: str, version: str) -> None:
    kubernetes_validate.validate(_load(name), version, strict=True)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", sorted(PODS))
def test_pods_have_only_fields_that_kubernetes_has(name: str, version: str) -> None:
    """Dynamo's own resource has no published schema at hand, but the pods in it have Kubernetes' own."""
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": PODS[name]}
    kubernetes_validate.validate(pod, version, strict=True)


def test_a_graph_deployment_has_only_fields_that_dynamo_has() -> None:
    """Around its pods; their own fields are Kubernetes'."""
    manifest = _load("dynamo.yaml")
    assert (manifest["apiVersion"], manifest["kind"]) == ("nvidia.com/v1alpha1", "DynamoGraphDeployment")
    assert set(manifest["spec"]) == {"services"}
    for service in manifest["spec"]["services"].values():
        assert set(service) <= _FIELDS_OF_A_SERVICE
        # A number of GPUs is a text there.
        assert [type(gpus) for gpus in service.get("resources", {}).get("limits", {}).values()] in ([], [str])


def test_an_unknown_field_is_refused() -> None:
    """The control: the validation above can fail."""
    manifest = _load("worker.yaml")
    manifest["spec"]["template"]["spec"]["initContainers"][0]["restartPolicies"] = "Always"
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(manifest, VERSIONS[0], strict=True)


def test_a_graph_deployment_has_a_sidecar_for_both_phases_and_none_for_the_frontend() -> None:
    assert sorted(WORKER_PODS) == ["dynamo.yaml DecodeWorker", "dynamo.yaml PrefillWorker", "worker.yaml"]
    assert "initContainers" not in PODS["dynamo.yaml Frontend"]


@pytest.mark.parametrize("name", sorted(WORKER_PODS))
def test_a_native_sidecar_never_holds_its_worker(name: str) -> None:
    """It is restarted by itself, and has no probe but the one for liveness."""
    sidecar = _find_sidecar(WORKER_PODS[name])
    assert sidecar in WORKER_PODS[name]["initContainers"]
    assert sidecar["restartPolicy"] == "Always"
    assert "livenessProbe" in sidecar
    assert not {"startupProbe", "readinessProbe"} & set(sidecar)


@pytest.mark.parametrize("name", sorted({*WORKER_PODS, "daemonset.yaml"}))
def test_the_sidecar_has_cpu_without_a_limit(name: str) -> None:
    """A throttled sidecar misses its deadlines; memory is bounded all the same."""
    resources = _find_sidecar(PODS[name])["resources"]
    assert "cpu" in resources["requests"]
    assert set(resources["limits"]) == {"memory"}


@pytest.mark.parametrize("name", sorted({*WORKER_PODS, "daemonset.yaml"}))
def test_the_sidecar_has_no_root_no_capabilities_and_a_root_that_it_can_not_write(name: str) -> None:
    context = _find_sidecar(PODS[name])["securityContext"]
    assert context["runAsNonRoot"] is True
    assert context["runAsUser"] == 65_532
    assert context["capabilities"] == {"drop": ["ALL"]}
    assert context["readOnlyRootFilesystem"] is True
    assert context["allowPrivilegeEscalation"] is False


@pytest.mark.parametrize("name", sorted(WORKER_PODS))
def test_the_socket_is_shared_by_a_group(name: str) -> None:
    """Sidecar and worker mount one volume, which belongs to the group that both are in."""
    spec = WORKER_PODS[name]
    mounts = [
        [mount["mountPath"] for mount in container["volumeMounts"] if mount["name"] == "routing-hints"]
        for container in (_find_sidecar(spec), spec["containers"][0])
    ]
    assert mounts == [["/run/routing-hints"], ["/run/routing-hints"]]
    assert spec["securityContext"]["fsGroup"] == 65_532


@pytest.mark.parametrize("name", sorted({*WORKER_PODS, "daemonset.yaml"}))
def test_the_policy_is_mounted_so_that_it_changes(name: str) -> None:
    """A file mounted by subPath would stay as it was at the start."""
    sidecar = _find_sidecar(PODS[name])
    (mount,) = [entry for entry in sidecar["volumeMounts"] if entry["name"] == "routing-hints-policy"]
    assert "subPath" not in mount
    (path,) = [entry["value"] for entry in sidecar["env"] if entry["name"] == "ROUTING_HINTS_POLICY"]
    assert path == f"{mount['mountPath']}/policy.yaml"


def test_the_policy_of_the_config_map_is_valid() -> None:
    policy_file = pytest.importorskip("sidecar.policy.file")
    policy = policy_file.parse_policy(_load("policy.yaml")["data"]["policy.yaml"])
    assert policy.operational.mode == "on"


def test_manifests_name_the_version_of_the_project() -> None:
    """Whoever applies a release's manifests gets that release's sidecar."""
    text = (ROOT / "pyproject.toml").read_text()
    version = re.search(r'^version = "(.+)"$', text, re.M).group(1)  # type: ignore[union-attr]
    named = {_find_sidecar(PODS[name])["image"] for name in (*WORKER_PODS, "daemonset.yaml")}
    assert named == {f"{NAME}:{version}"}
    assert f"localhost/{NAME}:{version}" in (ROOT / "deploy" / "compose.yaml").read_text()
    assert f"ARG VERSION={version}\n" in (ROOT / "Dockerfile").read_text()


@pytest.mark.parametrize("path", sorted(ROOT.glob("deploy/**/*.yaml")), ids=lambda path: path.name)
def test_variables_are_those_of_the_page(path: Path) -> None:
    """A variable that nothing reads would be a silent no-op."""
    page = (ROOT / "docs" / "reference.md").read_text()
    assert all(f"`{name}`" in page for name in re.findall(r"ROUTING_HINTS_[A-Z_]+", path.read_text()))
