"""PyTorch on the fixed model of bench/engine: tokens per CPU second.

    python pytorch.py train-eager|train-compile|decode THREADS STEPS

Prints lines as bench/engine does; the best step counts. Weights are random: the
speed does not depend on them.
"""
import math
import resource
import sys
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

VOCAB, DIM, LAYERS, HEADS, KV, HEAD, FFN, LENGTH, BATCH = 512, 128, 4, 4, 2, 32, 384, 256, 32

angles = torch.arange(LENGTH).double()[:, None] * 1e4 ** (-torch.arange(0, HEAD, 2).double() / HEAD)
COS, SIN = torch.cat([angles.cos()] * 2, 1).float(), torch.cat([angles.sin()] * 2, 1).float()


def rotate(x, cos, sin):
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat([-b, a], -1) * sin


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(DIM, eps=1e-5), nn.RMSNorm(DIM, eps=1e-5)
        self.qkv = nn.Linear(DIM, (HEADS + 2 * KV) * HEAD, bias=False)
        self.out = nn.Linear(HEADS * HEAD, DIM, bias=False)
        self.gate_up = nn.Linear(DIM, 2 * FFN, bias=False)
        self.down = nn.Linear(FFN, DIM, bias=False)

    def heads(self, x, cos, sin):
        b, t, _ = x.shape
        q, k, v = self.qkv(self.norm1(x)).split([HEADS * HEAD, KV * HEAD, KV * HEAD], -1)
        split = lambda y, n: y.view(b, t, n, HEAD).transpose(1, 2)
        return rotate(split(q, HEADS), cos, sin), rotate(split(k, KV), cos, sin), split(v, KV)

    def tail(self, x, attended):
        x = x + self.out(attended)
        gate, up = self.gate_up(self.norm2(x)).chunk(2, -1)
        return x + self.down(F.silu(gate) * up)

    def forward(self, x):
        b, t, _ = x.shape
        q, k, v = self.heads(x, COS[:t], SIN[:t])
        k, v = k.repeat_interleave(HEADS // KV, 1), v.repeat_interleave(HEADS // KV, 1)
        o = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.tail(x, o.transpose(1, 2).reshape(b, t, HEADS * HEAD))

    def step(self, x, keys, values, pos):
        q, k, v = self.heads(x, COS[pos : pos + 1], SIN[pos : pos + 1])
        keys[:, :, pos : pos + 1], values[:, :, pos : pos + 1] = k, v
        b = x.shape[0]  # the heads of a group are the queries of one position
        o = F.scaled_dot_product_attention(q.reshape(b, KV, HEADS // KV, HEAD), keys[:, :, : pos + 1], values[:, :, : pos + 1])
        return self.tail(x, o.reshape(b, 1, HEADS * HEAD))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, DIM)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.RMSNorm(DIM, eps=1e-5)
        self.head = nn.Linear(DIM, VOCAB, bias=False)
        for p in self.parameters():
            if p.dim() > 1:
                nn.init.normal_(p, std=0.02)

    def forward(self, ids):
        x = self.embed(ids)
        for b in self.blocks:
            x = b(x)
        return self.head(self.norm(x))


def cpu():
    r = resource.getrusage(resource.RUSAGE_SELF)
    return r.ru_utime + r.ru_stime


def measure(name, steps, tokens, f):
    f(), f()
    best_cpu = best_wall = math.inf
    for _ in range(steps):
        w, c = time.time(), cpu()
        f()
        best_cpu, best_wall = min(best_cpu, cpu() - c), min(best_wall, time.time() - w)
    print(f"{name:<22} {'torch':<9} {tokens / best_cpu:9.0f} tok/cpu-s {tokens / best_wall:9.0f} tok/s wall", flush=True)


def train(model, compiled, threads, steps):
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.0, fused=True)
    ids, targets = torch.randint(0, VOCAB, (BATCH, LENGTH)), torch.randint(0, VOCAB, (BATCH, LENGTH))
    old = torch.full((BATCH, LENGTH), -math.log(VOCAB))
    adv = torch.randn(BATCH, 1).expand(BATCH, LENGTH).contiguous()

    def loss(ids, targets, old, adv):
        lp = -F.cross_entropy(model(ids).flatten(0, 1), targets.flatten(), reduction="none").view_as(targets)
        ratio = (lp - old).exp()
        return -torch.minimum(ratio * adv, ratio.clamp(0.8, 1.2) * adv).sum() / targets.numel()

    f = torch.compile(loss) if compiled else loss

    def step():
        opt.zero_grad(set_to_none=True)
        f(ids, targets, old, adv).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()

    measure(f"fixed/train/{threads}T" + ("-compile" if compiled else "-eager"), steps, BATCH * LENGTH, step)


def decode(model, threads, steps):
    for batch in (1, 32):

        @torch.inference_mode()
        def run():
            keys = [torch.zeros(batch, KV, LENGTH, HEAD) for _ in range(LAYERS)]
            values = [torch.zeros(batch, KV, LENGTH, HEAD) for _ in range(LAYERS)]
            x = torch.zeros(batch, 1, dtype=torch.long)
            for pos in range(LENGTH):
                h = model.embed(x)
                for b, k, v in zip(model.blocks, keys, values):
                    h = b.step(h, k, v, pos)
                lp = torch.log_softmax(model.head(model.norm(h))[:, 0], -1)
                x = torch.multinomial(lp.exp(), 1)
                lp.gather(1, x)

        measure(f"fixed/decode-b{batch}/{threads}T", steps, batch * LENGTH, run)


if __name__ == "__main__":
    mode, threads, steps = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    torch.manual_seed(0)
    torch.set_num_threads(threads)
    print(f"# torch {torch.__version__}, {torch.backends.cpu.get_cpu_capability()}", file=sys.stderr)
    if mode == "decode":
        decode(Model(), threads, steps)
    else:
        train(Model(), mode == "train-compile", threads, steps)
