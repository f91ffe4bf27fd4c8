"""Spoken digits with Lightning, by learners that need not wait for each other.

    python examples/lightning_digits.py --out run --epochs 3
    python examples/lightning_digits.py --out run --epochs 5 --again    # goes on

Lightning starts the learners. FSDD=... is the folder of the Free Spoken Digit Dataset;
without it, each digit is a pair of tones. Only the `strategy` is not plain Lightning.
"""

import argparse
import os
from pathlib import Path

import lightning.pytorch as pl
import numpy as np
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from espnet_distopt.lightning import DistoptStrategy

SAMPLES = 6144
"""0.77 seconds at 8 kHz; longer recordings are cut, and shorter ones filled."""


class Digits(pl.LightningModule):
    """A convolutional network over the logarithmic spectrum."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv1d(65, 64, 5, stride=2),
            nn.BatchNorm1d(64),
            nn.ReLU(),
            nn.Conv1d(64, 64, 5, stride=2),
            nn.ReLU(),
            nn.AdaptiveAvgPool1d(3),
            nn.Flatten(),
            nn.Linear(192, 10),
        )

    def forward(self, waves: Tensor) -> Tensor:
        """Return a score for each digit, (B, 10), of waves (B, SAMPLES)."""
        window = torch.hann_window(128, device=waves.device)
        spectrum = torch.stft(waves, 128, 64, window=window, return_complex=True)
        scores: Tensor = self.net((spectrum.abs() + 1e-3).log())
        return scores

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        """Return the loss of a batch."""
        waves, digits = batch
        return nn.functional.cross_entropy(self(waves), digits)

    def validation_step(self, batch: list[Tensor], batch_idx: int) -> None:
        """Log the error rate: all learners validate the mean of their models."""
        waves, digits = batch
        wrong = (self(waves).argmax(1) != digits).float().mean()
        self.log("error", wrong, sync_dist=True)

    def configure_optimizers(self) -> dict[str, object]:
        """Return Adam, and a schedule that the learners follow together."""
        optimizer = torch.optim.Adam(self.parameters(), lr=2e-3)
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.99)
        step = {"scheduler": schedule, "interval": "step"}
        return {"optimizer": optimizer, "lr_scheduler": step}

    def on_train_epoch_end(self) -> None:
        """Say how far the training is."""
        batches = self.trainer.fit_loop.epoch_loop.batch_progress.current.ready
        error = float(self.trainer.callback_metrics["error"])
        print(
            f"epoch {self.current_epoch} learner {self.global_rank}: "
            f"{batches} batches, error {error:.3f}",
            flush=True,
        )


def recordings(folder: str | None) -> tuple[Tensor, Tensor, Tensor]:
    """Return waves (N, SAMPLES), digits (N,), and which are for validation (N,)."""
    if not folder:
        return tones()
    import soundfile

    paths = sorted(Path(folder, "recordings").glob("*.wav"))
    if not paths:
        raise SystemExit(f"error: FSDD={folder} has no recordings/*.wav")
    waves, digits, valid = [], [], []
    for path in paths:
        digit, _, take = path.stem.split("_")
        wave = np.zeros(SAMPLES, np.float32)
        read = soundfile.read(path, dtype="float32")[0][:SAMPLES]
        wave[: len(read)] = read
        waves.append(torch.from_numpy(wave))
        digits.append(int(digit))
        valid.append(int(take) < 5)  # The test set of the corpus.
    return torch.stack(waves), torch.tensor(digits), torch.tensor(valid)


def tones() -> tuple[Tensor, Tensor, Tensor]:
    """Return pairs of tones in noise, as telephones dial, in place of recordings."""
    source = torch.Generator().manual_seed(0)
    digits = torch.arange(600) % 10
    time = torch.arange(SAMPLES) / 8000
    low, high = 600 + 80 * (digits % 4), 1200 + 150 * (digits // 4)
    waves = sum(torch.sin(2 * torch.pi * f[:, None] * time) for f in (low, high))
    noise = torch.randn(len(digits), SAMPLES, generator=source)
    return waves + noise, digits, torch.arange(len(digits)) < 100


def main() -> None:
    """Train, and write the model of the last epoch to `out`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--learners", type=int, default=2)
    parser.add_argument("--algorithm", default="adpsgd")
    parser.add_argument("--again", action="store_true", help="go on from `out`")
    args = parser.parse_args()
    pl.seed_everything(0)
    waves, digits, valid = recordings(os.environ.get("FSDD"))
    trainer = pl.Trainer(
        strategy=DistoptStrategy(args.algorithm),
        accelerator="cpu",
        devices=args.learners,
        max_epochs=args.epochs,
        default_root_dir=args.out,
        callbacks=[ModelCheckpoint(args.out, filename="digits", save_last=True)],
        logger=False,
        enable_progress_bar=False,
    )
    trainer.fit(
        Digits(),
        DataLoader(TensorDataset(waves[~valid], digits[~valid]), 16, shuffle=True),
        DataLoader(TensorDataset(waves[valid], digits[valid]), 64),
        ckpt_path=args.out / "last.ckpt" if args.again else None,
    )


if __name__ == "__main__":
    main()
