"""Train the embedded model: `python -m lsp.tiny.training.train --out RUN`.

From nothing it learns four tasks, `--curriculum traces --start FOLDER` goes on from there and learns traces too, and
`--curriculum decoded --start FOLDER` goes on with what decoding meets.

Two processes of one thread each share every step over gloo. Muon updates the matrices of the
blocks, AdamW everything else. The state is saved every few minutes; the same command resumes
after a kill at any moment and, with --steps, ends with the same bits. With --minutes the schedule
follows the time spent in steps, pauses not counted.
"""

import argparse
import json
import multiprocessing
import os
import shutil
import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.multiprocessing.spawn import spawn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from lsp.tiny.training import tokenizer as tokens
from lsp.tiny.training.curriculum import CURRICULA
from lsp.tiny.training.cuts import Batch
from lsp.tiny.training.data import Batches
from lsp.tiny.training.model import Config, Group, TinyModel
from lsp.tiny.training.start import start_from
from lsp.tiny.training.surest import show_surest

MUON_RATE = 0.01
ADAM_RATE = 3e-3
WARM_UP = 60
DECAY = 0.4
"""The learning rate is constant, then falls to zero over this last share of the run."""

LONGEST_STEP = 30.0
"""Seconds a step may count for the schedule; whatever exceeds them was a pause."""


@dataclass(frozen=True)
class Options:
    out: Path
    steps: int | None
    minutes: float | None
    seed: int
    ranks: int
    save_every: int
    log_every: int
    scale: float
    float32: bool
    d_model: int
    n_layers: int
    start: Path | None = None
    curriculum: str = "first"


class InFloat32(TorchFunctionMode):
    """Keeps Muon's Newton-Schulz iteration in float32.

    Muon casts to bfloat16, whose products can take 30 times longer on a CPU without such instructions.
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: Any = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if func is torch.Tensor.bfloat16:
            return args[0].clone()
        return func(*args, **(kwargs or {}))


class Trainer:
    """One rank's model, optimisers and place in the run."""

    def __init__(self, options: Options, rank: int):
        self.options, self.rank = options, rank
        torch.manual_seed(options.seed)
        tokenizer = tokens.build()
        config = Config(
            vocab_size=tokenizer.get_vocab_size(),
            d_model=options.d_model,
            n_layers=options.n_layers,
            n_heads=options.d_model // 32,
            mlp_hidden_size=3 * options.d_model,
        )
        self.model = TinyModel(config).train()
        self.curriculum = CURRICULA[options.curriculum]
        if options.start:
            start_from(self.model, tokenizer, options.start)
        self.bfloat16 = torch.cpu._is_avx512_bf16_supported() and not options.float32
        self.tokenizer = tokenizer
        self.batches = Batches(tokenizer, options.seed, rank, options.scale, self.curriculum)
        self.parts = self.batches.parts
        self.matrices = [p for p in self.model.blocks.parameters() if p.dim() == 2]
        held = {id(p) for p in self.matrices}
        self.others = [p for p in self.model.parameters() if id(p) not in held]
        # each rank orthogonalises its share of the matrices and sends the result to the others
        mine = self.matrices[rank :: options.ranks]
        self.muon = torch.optim.Muon(mine, lr=MUON_RATE, weight_decay=0.01)
        self.adam = torch.optim.AdamW(self.others, lr=ADAM_RATE, betas=(0.9, 0.98), weight_decay=0)
        self.step, self.seconds, self.tokens = 0, 0.0, 0

    @property
    def progress(self) -> float:
        if self.options.minutes is not None:
            return self.seconds / (60 * self.options.minutes)
        return self.step / (self.options.steps or self.curriculum.steps)

    def count(self, seconds: float) -> None:
        """Add the time of a step to the clock of the schedule."""
        self.seconds += min(seconds, LONGEST_STEP)

    def train_step(self) -> Tensor:
        """One step; returns the loss of each part on this rank."""
        rate = min(1.0, (self.step + 1) / WARM_UP) * min(1.0, (1 - self._agreed_progress()) / DECAY)
        for optimiser, base in ((self.muon, MUON_RATE), (self.adam, ADAM_RATE)):
            for group in optimiser.param_groups:
                group["lr"] = base * self.curriculum.rate * max(rate, 0.0)
        batches, weights = zip(*(self.batches.part(part, self.step) for part in self.parts), strict=True)
        losses = self.losses([show_surest(batch, self.probabilities) for batch in batches])
        (losses @ torch.tensor(weights) / (len(self.parts) - 1)).backward()
        self.tokens += sum(batch.inputs.numel() for batch in batches)
        self._average_gradients()
        torch.nn.utils.clip_grad_norm_(self.others, 1.0)
        self.adam.step()
        with nullcontext() if self.bfloat16 else InFloat32():
            self.muon.step()
        self.model.zero_grad()
        self._exchange_matrices()
        self.step += 1
        return losses.detach()

    def logits(self, batches: Sequence[Batch], at: Sequence[Tensor]) -> Tensor:
        """Those of the positions `at` in each batch, [N, V].

        Rows and steps are filled up to few lengths, because products of a new shape are compiled first.
        """
        groups = [Group.of(batch.inputs, batch.visible, batch.positions).widened(32) for batch in batches]
        filling = Group.of(torch.zeros(-sum(group.ids.numel() for group in groups) % 512, 1, dtype=torch.long))
        with torch.autocast("cpu", torch.bfloat16, enabled=self.bfloat16):
            *hidden, _ = self.model.hidden_of([*groups, filling])
            asked = torch.cat([h[:, : some.shape[1]][some] for h, some in zip(hidden, at, strict=True)])
            logits: Tensor = self.model.ff_out(asked)
        return logits.float()

    @torch.no_grad()
    def probabilities(self, batch: Batch, at: Tensor) -> Tensor:
        return self.logits([batch], [at]).softmax(-1)

    def losses(self, batches: Sequence[Batch]) -> Tensor:
        """Of each batch the weighted cross entropy of the masked positions, per answer token."""
        logits = self.logits(batches, [batch.masked for batch in batches])
        targets, weights = (
            torch.cat([each[batch.masked] for each, batch in zip(some, batches, strict=True)])
            for some in ([batch.targets for batch in batches], [batch.weights for batch in batches])
        )
        each = F.cross_entropy(logits, targets, reduction="none") * weights
        parts = each.split([int(batch.masked.sum()) for batch in batches])
        return torch.stack([part.sum() / batch.answer_tokens for part, batch in zip(parts, batches, strict=True)])

    def _average_gradients(self) -> None:
        gradients = [p.grad for p in self.model.parameters() if p.grad is not None]
        flat = torch.cat([g.flatten() for g in gradients])
        dist.all_reduce(flat)
        flat /= self.options.ranks
        means = torch.split(flat, [g.numel() for g in gradients])
        for gradient, mean in zip(gradients, means, strict=True):
            gradient.copy_(mean.view_as(gradient))

    def _exchange_matrices(self) -> None:
        """Every rank sends the matrices it updated, all in one message: a core that is shared answers late."""
        for rank in range(self.options.ranks):
            theirs = self.matrices[rank :: self.options.ranks]
            flat = torch.cat([m.data.flatten() for m in theirs])
            dist.broadcast(flat, rank)
            for matrix, new in zip(theirs, torch.split(flat, [m.numel() for m in theirs]), strict=True):
                matrix.data.copy_(new.view_as(matrix))

    def _agreed_progress(self) -> float:
        """The first rank's progress: by the clock, which only --minutes follows, the ranks differ."""
        if self.options.minutes is None:
            return self.progress
        progress = torch.tensor(self.progress, dtype=torch.float64)
        dist.broadcast(progress, 0)
        return progress.item()

    def save(self) -> None:
        """Write the state so that a kill at any moment leaves either the old or the new one."""
        folder = self.options.out / f"state-{self.step}"
        folder.mkdir(parents=True, exist_ok=True)
        state = {
            "model": self.model.state_dict(),
            "muon": self.muon.state_dict(),
            "adam": self.adam.state_dict(),
            "seconds": self.seconds,
            "tokens": self.tokens,
        }
        torch.save(state, folder / f"rank-{self.rank}.pt")
        dist.barrier()
        if self.rank == 0:
            self.model.save(folder)
            tokens.save(self.tokenizer, folder)
            pointer = self.options.out / "latest.json.part"
            pointer.write_text(json.dumps({"step": self.step}))
            os.replace(pointer, self.options.out / "latest.json")
            for old in self.options.out.glob("state-*"):
                if old != folder:
                    shutil.rmtree(old)

    def resume(self) -> None:
        """Continue from the last complete state, if there is one."""
        latest = self.options.out / "latest.json"
        if not latest.exists():
            return
        self.step = json.loads(latest.read_text())["step"]
        state = torch.load(self.options.out / f"state-{self.step}" / f"rank-{self.rank}.pt")
        self.model.load_state_dict(state["model"])
        self.muon.load_state_dict(state["muon"])
        self.adam.load_state_dict(state["adam"])
        self.seconds, self.tokens = state["seconds"], state["tokens"]

    def run(self) -> None:
        self.resume()
        say = self._say if self.rank == 0 else lambda _: None
        size = sum(p.numel() for p in self.model.parameters())
        products = "bfloat16" if self.bfloat16 else "float32"
        say(f"{size} parameters, vocabulary {self.model.config.vocab_size}, {products} products, from step {self.step}")
        total, count = torch.zeros(len(self.parts)), 0
        while self._agreed_progress() < 1:
            before = time.monotonic()
            total += self.train_step()
            count += 1
            self.count(time.monotonic() - before)
            done = self._agreed_progress() >= 1
            if self.step % self.options.log_every == 0 or done:
                dist.all_reduce(total)
                say(self._line(total / (count * self.options.ranks)))
                total, count = torch.zeros(len(self.parts)), 0
            if self.step % self.options.save_every == 0 or done:
                self.save()
        say("done")

    def _line(self, losses: Tensor) -> str:
        speed = self.tokens * self.options.ranks / max(self.seconds, 1e-9)
        left = self.seconds * (1 / max(self.progress, 1e-9) - 1) / 60
        each = "  ".join(f"{task} {loss:.3f}" for task, loss in zip(self.parts, losses.tolist(), strict=True))
        return (
            f"step {self.step:5d}  {100 * self.progress:5.1f} %  {each}  "
            f"{self.tokens * self.options.ranks / 1e6:.2f} M tokens  {speed:.0f}/s  "
            f"{self.seconds / 60:.1f} min, {left:.0f} left"
        )

    def _say(self, line: str) -> None:
        print(line, flush=True)
        with open(self.options.out / "log.txt", "a") as log:
            log.write(line + "\n")


def end_with_parent() -> None:
    """Ends this process when the one that started it is gone, however that ended: its end of a pipe closes then."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def worker(rank: int, options: Options, port: int) -> None:
    end_with_parent()
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"tcp://127.0.0.1:{port}",
        rank=rank,
        world_size=options.ranks,
        timeout=timedelta(days=1),
    )
    Trainer(options, rank).run()
    dist.destroy_process_group()


def train(options: Options) -> None:
    """Train or resume, in `options.ranks` processes; the checkpoint lands in `out/state-*`."""
    options.out.mkdir(parents=True, exist_ok=True)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    spawn(worker, (options, port), nprocs=options.ranks)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder of the run")
    parser.add_argument("--start", type=Path, help="checkpoint to go on from")
    parser.add_argument("--curriculum", choices=list(CURRICULA), default="first", help="what the run shows")
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--steps", type=int, help="length of the run; by default that of the curriculum")
    length.add_argument("--minutes", type=float, help="length of the run by the clock")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--save-every", type=int, default=100)
    parser.add_argument("--log-every", type=int, default=20)
    parser.add_argument("--scale", type=float, default=1.0, help="of the batch sizes")
    parser.add_argument("--float32", action="store_true", help="even if the processor has bfloat16 instructions")
    parser.add_argument("--d-model", type=int, default=160)
    parser.add_argument("--n-layers", type=int, default=6)
    options = Options(**vars(parser.parse_args()))
    train(options)


if __name__ == "__main__":
    main()
