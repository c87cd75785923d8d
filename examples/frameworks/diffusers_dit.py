"""diffusers: a small diffusion transformer learns to draw handwritten digits, as an autoencoder sees them.

    python examples/frameworks/diffusers_dit.py

An autoencoder (VAE) is trained for some steps; a transformer (DiT) then learns to remove noise from what it makes of
the images, and the pipeline of diffusers draws digits of given classes.
"""

import torch
import torch.nn.functional as F
from beside_cpu import Steps, compare
from diffusers import AutoencoderKL, DDIMScheduler, DDPMScheduler, DiTPipeline, DiTTransformer2DModel
from sklearn.datasets import load_digits

import torch_xla

BATCH = 16
CLASSES = 10


def autoencoder() -> AutoencoderKL:
    return AutoencoderKL(in_channels=1, out_channels=1, block_out_channels=(8, 16), layers_per_block=1,
                         latent_channels=4, norm_num_groups=4, sample_size=8,
                         down_block_types=("DownEncoderBlock2D",) * 2,
                         up_block_types=("UpDecoderBlock2D",) * 2)  # fmt: skip


def transformer() -> DiTTransformer2DModel:
    # The pipeline asks for no class in particular by the number 1000.
    return DiTTransformer2DModel(num_attention_heads=2, attention_head_dim=8, in_channels=4, out_channels=4,
                                 num_layers=2, sample_size=4, patch_size=1, num_embeds_ada_norm=1000)  # fmt: skip


def train_autoencoder(vae: AutoencoderKL, images: torch.Tensor) -> float:
    optimizer = torch.optim.AdamW(vae.parameters(), lr=1e-3)
    for step in range(5):
        clean = images[step * BATCH : (step + 1) * BATCH].to(vae.device)
        seen = vae.encode(clean).latent_dist
        loss = F.mse_loss(vae.decode(seen.mode()).sample, clean) + 1e-3 * seen.kl().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        torch_xla.sync()
    return loss.item()


def train(device: str, steps: Steps) -> dict[str, float]:
    digits = load_digits()
    images, classes = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 8 - 1, torch.tensor(digits.target)
    vae = autoencoder().to(device)
    rebuilt = train_autoencoder(vae, images)
    vae.requires_grad_(False).eval()

    model = (
        transformer().to(device).eval()
    )  # in training it drops classes at random, and each device draws its own numbers
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    scheduler = DDPMScheduler(num_train_timesteps=1000)
    for step in range(20):
        chosen = slice(step * BATCH, (step + 1) * BATCH)
        latents = vae.encode(images[chosen].to(device)).latent_dist.mode()
        noise, times = torch.randn(BATCH, 4, 4, 4).to(device), torch.randint(1000, (BATCH,))
        noisy = scheduler.add_noise(latents, noise, times.to(device))
        predicted = model(noisy, times.to(device), classes[chosen].to(device)).sample
        loss = F.mse_loss(predicted, noise)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        torch_xla.sync()
        steps.ended(loss)

    draw = DiTPipeline(model, vae, DDIMScheduler(num_train_timesteps=1000))
    draw.set_progress_bar_config(disable=True)
    drawn = draw([3, 5], generator=torch.Generator().manual_seed(0), num_inference_steps=4, output_type="np").images
    return {"loss of the autoencoder": rebuilt, "first drawn, mean": float(drawn[0].mean()),
            "second": float(drawn[1].mean())}  # fmt: skip


if __name__ == "__main__":
    compare(train, tolerance=1e-4)
