"""diffusers: a small UNet learns to remove noise from scikit-learn's handwritten digits, and then draws some.

    python examples/frameworks/diffusers_unet.py

Training with the exponential moving average that diffusers keeps, then the denoising loop. Its times stay on the CPU
and go to the device one by one, so that all steps run one program: an element of a tensor on xla is a view with its
place in it, and another place is another program.
"""

import torch
import torch.nn.functional as F
from beside_cpu import Steps, compare
from diffusers import DDIMScheduler, DDPMScheduler, UNet2DModel
from diffusers.training_utils import EMAModel
from sklearn.datasets import load_digits

import torch_xla

BATCH = 16


def unet() -> UNet2DModel:
    return UNet2DModel(sample_size=8, in_channels=1, out_channels=1, layers_per_block=1, norm_num_groups=8,
                       block_out_channels=(16, 32), down_block_types=("DownBlock2D", "AttnDownBlock2D"),
                       up_block_types=("AttnUpBlock2D", "UpBlock2D"))  # fmt: skip


def denoise(model: UNet2DModel, noise: torch.Tensor) -> torch.Tensor:
    """Ten steps from noise to images."""
    scheduler = DDIMScheduler(num_train_timesteps=1000)
    scheduler.set_timesteps(10)
    images, steps = noise, Steps()
    with torch.no_grad():
        for time in scheduler.timesteps:
            predicted = model(images, time.to(noise.device)).sample
            images = scheduler.step(predicted, time, images).prev_sample
            torch_xla.sync()
            steps.ended(0)
    assert sum(steps.compiled()[1:]) == 0, f"programs compiled by the steps: {steps.compiled()}"
    return images


def train(device: str, steps: Steps) -> dict[str, float]:
    images = torch.tensor(load_digits().images, dtype=torch.float32).unsqueeze(1) / 8 - 1
    model = unet().to(device)
    average = EMAModel(model.parameters(), decay=0.9)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    scheduler = DDPMScheduler(num_train_timesteps=1000)
    for step in range(20):
        clean = images[step * BATCH : (step + 1) * BATCH]
        noise, times = torch.randn_like(clean), torch.randint(1000, (BATCH,))
        noisy = scheduler.add_noise(clean, noise, times)
        loss = F.mse_loss(model(noisy.to(device), times.to(device)).sample, noise.to(device))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        average.step(model.parameters())
        torch_xla.sync()
        steps.ended(loss)

    average.copy_to(model.parameters())
    drawn = denoise(model.eval(), torch.randn(4, 1, 8, 8).to(device)).cpu()
    return {f"drawn image {number}, mean": image.mean().item() for number, image in enumerate(drawn, 1)}


if __name__ == "__main__":
    compare(train, tolerance=1e-4)
