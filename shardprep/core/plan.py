"""Plans as values: what was listed, who scans what, and which rows make which shard. One door to three rooms."""

from __future__ import annotations

from shardprep.core.deal import shard_histogram, shard_lengths, shard_rows
from shardprep.core.histogram import LengthHistogram, histogram_of, merged, subtracted
from shardprep.core.plan_scan import ObjectRef, ScanPlan, ScanTask, SourceTable, object_name, plan_id, plan_scan
from shardprep.core.plan_shards import ScanReport, ShardPlan, ShardRanges, SplitPlan, plan_shards, shard_count
from shardprep.core.row_groups import row_groups

__all__ = [
    "LengthHistogram",
    "ObjectRef",
    "ScanPlan",
    "ScanReport",
    "ScanTask",
    "ShardPlan",
    "ShardRanges",
    "SourceTable",
    "SplitPlan",
    "histogram_of",
    "merged",
    "object_name",
    "plan_id",
    "plan_scan",
    "plan_shards",
    "row_groups",
    "shard_count",
    "shard_histogram",
    "shard_lengths",
    "shard_rows",
    "subtracted",
]
