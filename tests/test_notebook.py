"""The notebook runs from top to bottom without a GPU and without a network, and says what takes the place of what.

Here its cells run as one program, with a stand-in for IPython's display. ``make test-notebook`` runs it by nbclient in
Jupyter's own kernel, which brings too many packages for every clone.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from lsp_kernels import _ops, info
from lsp_kernels.triton.configs import device
from tests.support import ROOT

NOTEBOOK = ROOT / "docs/notebooks/lsp_on_a_gpu.ipynb"
CELLS = json.loads(NOTEBOOK.read_text("utf-8"))["cells"]
CODE = {cell["id"]: "".join(cell["source"]) for cell in CELLS if cell["cell_type"] == "code"}
OFFLINE = {"HF_HUB_OFFLINE": "1", "OMP_WAIT_POLICY": "PASSIVE", "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""}
DISPLAY = """
import sys, types
sys.modules["IPython"] = types.ModuleType("IPython")
sys.modules["IPython.display"] = types.ModuleType("IPython.display")
sys.modules["IPython.display"].HTML = lambda text: print(text[:7], len(text))  # shows it, as a last line does
"""


def test_the_notebook_is_kept_without_results() -> None:
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in CELLS if cell["id"] in CODE)
    assert list(CODE) == ["install", "device", "kernels", "decode", "trace", "page"]


def check_what_it_says(shown: str) -> None:
    assert "GPU: none that torch can use" in shown
    assert "commit_prefix, torch.float32: equal" in shown
    assert "commit_prefix, torch.bfloat16: equal" in shown
    assert "suffix_attention: within rounding of the reference" in shown
    assert "the hub could not be reached (no network?).\nThe embedded model takes its place." in shown
    assert shown.count("First 7 + 5 = 12, then 12 + 3 = 15.") == 2
    assert "pass 1: The run of margins" in shown


def test_it_runs_from_top_to_bottom_without_a_gpu_and_without_a_network(tmp_path: Path) -> None:
    program = tmp_path / "notebook.py"
    program.write_text("\n".join([DISPLAY, *CODE.values()]), "utf-8")
    environment = os.environ | OFFLINE
    done = subprocess.run([sys.executable, program], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    check_what_it_says(done.stdout)
    assert done.stdout.splitlines()[-1].startswith("<iframe")
    assert "Longest stable prefix" in (tmp_path / "lsp-trace.html").read_text("utf-8")


@pytest.fixture
def _nothing_is_known_of_gpus() -> Iterator[None]:
    """What was asked of a GPU is remembered; before and after the test it is forgotten."""
    remembered = (_ops.triton_reason, device.unknown_architecture, device.device_of)
    for function in remembered:
        function.cache_clear()
    yield
    for function in remembered:
        function.cache_clear()


@pytest.mark.usefixtures("_nothing_is_known_of_gpus")
@pytest.mark.parametrize(("architecture", "covered"), [("sm_75", False), ("sm_89", True), ("sm_80", True)])
def test_a_gpu_that_the_tables_do_not_cover_is_named(
    architecture: str, covered: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The cell that looks at the GPU, on one that torch only says it has."""
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    monkeypatch.setattr("torch.cuda.get_device_name", lambda i: "a GPU")
    monkeypatch.setattr(device, "query", lambda _: device.Device(architecture, 40))
    scope: dict[str, object] = {"info": info}
    exec(CODE["device"], scope)
    shown = capsys.readouterr().out
    assert scope["own_kernels"] is covered
    assert scope["device"] == "cuda"
    assert (f"not proven for the architecture {architecture}" in shown) is not covered
    assert ("The Triton kernels do not cover this GPU" in shown) is not covered


def test_only_what_is_missing_is_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[list[str]] = []
    monkeypatch.setattr(subprocess, "run", lambda command, check: called.append(command[1:]))
    exec(CODE["install"], {})
    assert called == []
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.chdir(tmp_path)
    exec(CODE["install"], {})
    monkeypatch.chdir(NOTEBOOK.parent)
    exec(CODE["install"], {})
    monkeypatch.setenv("LSP_SOURCE", "lsp.whl")
    exec(CODE["install"], {})
    sources = ["lsp-kernels[lsp]", f"{ROOT}[lsp]", "lsp.whl[lsp]"]
    assert called == [["-m", "pip", "install", "-q", source] for source in sources]


@pytest.mark.skipif(
    importlib.util.find_spec("nbclient") is None, reason="nbclient is not installed: make test-notebook"
)
def test_jupyter_runs_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import nbclient
    import nbformat

    for name, value in OFFLINE.items():
        monkeypatch.setenv(name, value)
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(notebook)
    client = nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}})
    outputs = [output for cell in client.execute().cells if cell.cell_type == "code" for output in cell.outputs]
    check_what_it_says("".join(output.get("text", "") for output in outputs if output.get("name") == "stdout"))
    assert outputs[-1]["data"]["text/html"].startswith("<iframe srcdoc=")
