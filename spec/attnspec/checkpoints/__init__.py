"""Weights in and out: canonical weights from and to the layouts that libraries keep, in safetensors files.

A layout is data (see `layouts`): for every canonical tensor the name under which it is kept, and the axes
in which it is stored. Nothing here unpickles anything: a pickled checkpoint can run code when it is read.
"""

from .files import convert_file
from .grouping import GroupedSavings, group_heads, grouped_savings
from .layouts import LAYOUTS, Layout
from .mapping import fitting_layouts, read_weights, write_weights

__all__ = [
    "LAYOUTS",
    "GroupedSavings",
    "Layout",
    "convert_file",
    "fitting_layouts",
    "group_heads",
    "grouped_savings",
    "read_weights",
    "write_weights",
]
