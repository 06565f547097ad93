"""Filling large regions: plan the cost, compute ahead of reads, and read only what is stored."""

from infinite_tensor.filling.fillable import FillOptions
from infinite_tensor.filling.mask import Mask
from infinite_tensor.filling.plan import FilledRegion, FillPlan, TensorPlan
from infinite_tensor.filling.progress import FillReport, Progress, TensorReport
from infinite_tensor.filling.stored_only import StoredOnly

__all__ = [
    "FillOptions",
    "FillPlan",
    "FillReport",
    "FilledRegion",
    "Mask",
    "Progress",
    "StoredOnly",
    "TensorPlan",
    "TensorReport",
]
