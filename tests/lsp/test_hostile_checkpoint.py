"""A checkpoint's folder is data: nothing in it runs, whatever it names and whatever stdin says."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import lsp
from lsp.tiny import CHECKPOINT
from tests.lsp.checkpoints import dream, llada
from tests.lsp.tokenizers_at_hand import byte_level
from tests.support import ROOT

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.abuse("models and checkpoints")

CLASSES = (
    "AutoConfig",
    "AutoModel",
    "AutoModelForCausalLM",
    "AutoModelForMaskedLM",
    "AutoModelForSequenceClassification",
)
LOCAL = "evil.Evil"


def everywhere(reference: str) -> dict:
    return dict.fromkeys(CLASSES, reference) | {"AutoTokenizer": [reference, reference], "AutoProcessor": reference}


def plant(folder: Path) -> None:
    """Code that leaves a mark when it is imported, under the names that libraries look for."""
    folder.mkdir(exist_ok=True)
    lines = "from pathlib import Path\n(Path(__file__).parent / 'ran').touch()\n"
    lines += f"Path({str(folder / 'ran')!r}).touch()\n"
    lines += "from transformers import PreTrainedTokenizerFast\nclass Evil(PreTrainedTokenizerFast): pass\n"
    for name in ("evil", "modeling_evil", "configuration_evil", "tokenization_evil", "tokenizer", "__init__"):
        (folder / f"{name}.py").write_text(lines)


def rewrite(path: Path, **changes: object) -> None:
    content = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(content | changes))


def own_code(folder: Path) -> None:
    rewrite(folder / "config.json", auto_map=everywhere(LOCAL))
    rewrite(folder / "tokenizer_config.json", auto_map=everywhere(LOCAL))


def own_code_in_the_old_form(folder: Path) -> None:
    rewrite(folder / "tokenizer_config.json", auto_map=[LOCAL, LOCAL])


def code_of_another_repository(folder: Path) -> None:
    plant(folder.parent / "other")
    rewrite(folder / "config.json", auto_map=everywhere(f"{folder.parent / 'other'}--{LOCAL}"))
    rewrite(folder / "tokenizer_config.json", auto_map=everywhere(f"{folder.parent / 'other'}--{LOCAL}"))


def a_tokenizer_class_of_its_own(folder: Path) -> None:
    rewrite(folder / "config.json", tokenizer_class="Evil", auto_map=everywhere(LOCAL))
    rewrite(folder / "tokenizer_config.json", tokenizer_class="Evil", auto_map=everywhere(LOCAL))


def a_processor(folder: Path) -> None:
    for name in ("processor_config.json", "preprocessor_config.json", "tokenizer_config.json"):
        rewrite(folder / name, processor_class="Evil", auto_map=everywhere(LOCAL))


def kernels_on_the_hub(folder: Path) -> None:
    rewrite(folder / "config.json", attn_implementation="evil/kernel", _attn_implementation="evil/kernel")


CHANGES = [own_code, own_code_in_the_old_form, code_of_another_repository, a_tokenizer_class_of_its_own, a_processor]
CHANGES += [kernels_on_the_hub]


def a_tokenizer_inside_a_tokenizer(folder: Path) -> None:
    """A class of transformers that loads two others from subfolders, by an AutoTokenizer that asks."""
    encoder = {"model_type": "vit"}
    rewrite(folder / "config.json", question_encoder=encoder, generator=encoder)
    rewrite(folder / "tokenizer_config.json", tokenizer_class="RagTokenizer")
    for name in ("question_encoder_tokenizer", "generator_tokenizer"):
        plant(folder / name)
        rewrite(folder / name / "tokenizer_config.json", auto_map=everywhere(LOCAL))


def embedded(folder: Path) -> None:
    for file in CHECKPOINT.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())


def two_files(folder: Path) -> None:
    """As Dream comes."""
    dream().save(folder)
    byte_level().model.save(str(folder))


def no_tokenizer(folder: Path) -> None:
    llada().save(folder)
    rewrite(folder / "tokenizer_config.json")


FOLDERS = {"tokenizer.json": embedded, "vocab.json": two_files, "no tokenizer": no_tokenizer}


@pytest.fixture(params=FOLDERS)
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    out = tmp_path / "folder"
    out.mkdir()
    FOLDERS[request.param](out)
    plant(out)
    return out


@pytest.fixture
def stdin(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    """Someone who says yes to everything."""
    out = io.StringIO("y\n" * 50)
    monkeypatch.setattr(sys, "stdin", out)
    return out


def nothing_ran(folder: Path, stdin: io.StringIO | None = None) -> None:
    assert not list(folder.parent.rglob("ran"))
    assert stdin is None or stdin.tell() == 0, "somebody was asked"


def attempt(call: Callable[[], object]) -> None:
    """What happens to a hostile folder is refused or read as data."""
    with contextlib.suppress(ValueError, OSError, TypeError):
        call()


@pytest.mark.parametrize("change", [*CHANGES, a_tokenizer_inside_a_tokenizer], ids=lambda change: change.__name__)
def test_loading_runs_nothing(folder: Path, change: Callable[[Path], None], stdin: io.StringIO) -> None:
    change(folder)
    attempt(lambda: lsp.load(folder))
    attempt(lambda: lsp.load_tokenizer(folder))
    attempt(lambda: lsp.load_tokenizer(folder, trust_remote_code=True))
    attempt(lambda: lsp.load_tokenizer(lsp.load(folder)))
    attempt(lambda: lsp.generate(lsp.load(folder), "hello", max_new_tokens=2))
    nothing_ran(folder, stdin)


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_registered_auto_classes_run_nothing(folder: Path, change: Callable[[Path], None], stdin: io.StringIO) -> None:
    change(folder)
    lsp.register()
    for name in (*CLASSES, "AutoTokenizer"):
        attempt(lambda name=name: getattr(transformers, name).from_pretrained(folder))
    for name in CLASSES:
        attempt(lambda name=name: getattr(transformers, name).from_pretrained(folder, trust_remote_code=True))
    config = transformers.AutoConfig.from_pretrained(folder)
    assert not hasattr(config, "auto_map")
    attempt(lambda: transformers.AutoModel.from_config(config))
    nothing_ran(folder, stdin)


@pytest.mark.parametrize("folder", ["tokenizer.json"], indirect=True)
def test_a_hostile_folder_still_decodes(folder: Path, stdin: io.StringIO) -> None:
    """The class that it names is passed over, not looked for."""
    for change in CHANGES:
        change(folder)
    prompt = "Use 3, 5 and 7 to make 15.\n"
    answers = [lsp.generate(lsp.load(path, dtype="float32"), prompt, max_new_tokens=24) for path in (folder, "tiny")]
    assert answers[0][0].text == answers[1][0].text
    nothing_ran(folder, stdin)


@pytest.mark.parametrize("folder", ["tokenizer.json", "no tokenizer"], indirect=True)
def test_the_command_runs_nothing_when_stdin_says_yes(folder: Path) -> None:
    own_code(folder)
    command = [sys.executable, "-c", "from lsp.cli import main; main()", "generate", "--model", str(folder), "hello"]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, cwd=folder, env=environment, input="y\n" * 50, capture_output=True, text=True, check=False
    )
    assert "[y/N]" not in done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    nothing_ran(folder)
