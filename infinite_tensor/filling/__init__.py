"""Large regions: what they cost, computing them ahead of reads, and what is stored of them."""

from infinite_tensor.filling.mask import Mask
from infinite_tensor.filling.plan import FilledRegion, FillPlan, TensorPlan
from infinite_tensor.filling.progress import FillReport, Progress, TensorReport
from infinite_tensor.filling.stored_only import StoredOnly

__all__ = ["FillPlan", "FillReport", "FilledRegion", "Mask", "Progress", "StoredOnly", "TensorPlan", "TensorReport"]
