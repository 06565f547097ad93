"""Large regions: what they cost, and computing them ahead of reads."""

from infinite_tensor.filling.plan import FilledRegion, FillPlan, TensorPlan
from infinite_tensor.filling.progress import FillReport, Progress, TensorReport

__all__ = ["FillPlan", "FillReport", "FilledRegion", "Progress", "TensorPlan", "TensorReport"]
