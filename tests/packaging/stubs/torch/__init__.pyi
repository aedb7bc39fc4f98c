# What the typed program needs of torch: mypy reads all of the real one, which takes 10 s.
from torch import nn as nn

class Tensor: ...
