"""The job for KubeRay in docs/operate/preemptible.md."""

from __future__ import annotations

import yaml

from tests.blocks import DOCS
from tests.test_tutorials import assert_continues, files_of


def test_the_cluster_of_kuberay_fits_together() -> None:
    spec = yaml.safe_load(files_of(DOCS / "operate" / "preemptible.md")["rayjob.yaml"])["spec"]
    head = spec["rayClusterSpec"]["headGroupSpec"]["template"]["spec"]
    (worker,) = spec["rayClusterSpec"]["workerGroupSpecs"][0]["template"]["spec"]["containers"]
    (main_container,) = head["containers"]
    assert main_container["image"] == worker["image"]
    assert {each["name"] for each in main_container["volumeMounts"]} == {each["name"] for each in head["volumes"]}
    assert [each["mountPath"] for each in main_container["volumeMounts"]] == ["/results"]


def test_its_command_is_understood() -> None:
    assert_continues(yaml.safe_load(files_of(DOCS / "operate" / "preemptible.md")["rayjob.yaml"])["spec"]["entrypoint"])
