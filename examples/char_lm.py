"""Train a tiny transformer to write sentences, letter by letter.

python examples/char_lm.py
coddl run --workers 2 --resize "20:4,60:1" examples/char_lm.py
"""

import argparse
import random

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import coddl

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=3)
options = parser.parse_args()

choose = random.Random(0).choice  # the seed makes the text the same in every worker
nouns, verbs = "fox dog owl cat bear wolf".split(), "sees follows likes fears".split()
some = lambda: f"the {choose(['quick', 'old', 'small', 'lazy'])} {choose(nouns)}"
text = "".join(f"{some()} {choose(verbs)} {some()}. " for _ in range(6000))
letters = sorted(set(text))
windows = torch.tensor([letters.index(c) for c in text]).unfold(0, 49, 48)
