"""Large regions: what they cost, and computing them ahead of reads."""

from infinite_tensor.filling.forecast import FilledRegion, FillPlan, TensorPlan
from infinite_tensor.filling.progress import Progress
from infinite_tensor.filling.report import FillReport, TensorReport

__all__ = ["FillPlan", "FillReport", "FilledRegion", "Progress", "TensorPlan", "TensorReport"]
