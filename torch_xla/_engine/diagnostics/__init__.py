"""Diagnostics: why a program is slow, wrong or out of memory. A folder for each question; off, they cost nothing.

In: events, graphs and programs. Out: reports, profiles, files that replay a step.

Doors: none.
"""

from .fleet.exporters import Exporter, send_opentelemetry, serve_prometheus, write_json_lines, write_tensorboard
from .fleet.flight_recorder import dump as dump_flight_record
from .fleet.goodput import Goodput
from .fleet.goodput import read as read_goodput
from .logs.evaluation_ban import allow as allow_evaluation
from .logs.evaluation_ban import is_allowed as is_evaluation_allowed
from .logs.graph_files import save as save_graph
from .logs.host_read_counts import Read as HostRead
from .logs.host_read_counts import Tally as HostReadTally
from .logs.host_read_counts import read_of as host_read_of
from .logs.metrics_report_file import save_report as save_metrics_report
from .logs.stack_places import current_graph_name, name_graphs
from .logs.switches import start as start_logs
from .profiles.operator_times import OperatorTimes, operator_times
from .profiles.profiler import (
    ProfilerServer,
    StepTrace,
    Trace,
    forget_step_ended,
    module_traces,
    set_step_ended,
    start_trace,
    step_ended,
    stop_trace,
)
from .profiles.profiler import capture as capture_profile
from .profiles.profiler import traced as traced_for_profile
from .profiles.torch_profiler import install as install_torch_profiler
from .recompiles.causes import Explanation
from .recompiles.causes import explained as explaining_recompiles
from .recompiles.causes import refused as refusing_recompiles
from .recompiles.causes import report as recompile_report
from .recompiles.differences import Difference
from .report.contents import collect as collect_report
from .report.contents import to_text as report_as_text
from .report.history import clear as clear_history
from .report.history import keep as keep_history
from .report.html_page import to_page as report_as_page
from .report.pending_graphs import tensors_report as pending_tensors_report
from .sharding.communication import Traffic
from .sharding.communication import found as traffic_of_programs
from .sharding.communication import report as traffic_report
from .sharding.sharding_grid import devices_of as grid_devices
from .sharding.sharding_grid import svg as grid_as_svg
from .sharding.sharding_grid import tables as grid_as_tables
from .sharding.sharding_grid import text as grid_as_text
from .values.bad_value_checks import checking as checking_values
from .values.capture import capturing as capturing_step
from .values.cpu_recomputation import StepComparison
from .values.cpu_recomputation import replay as replay_step
from .values.first_nan import searching as searching_nan
from .values.tensor_snapshots import compare_files as compare_snapshots
from .values.tensor_snapshots import compare_folders as compare_snapshot_folders
from .values.tensor_snapshots import compare_tensors
from .values.tensor_snapshots import configure as configure_snapshots
from .values.tensor_snapshots import save as save_snapshot
from .waiting.host_time_profile import HostProfile, Part
from .waiting.host_time_profile import profiled as profiling_host_time
from .waiting.wait_costs import Cost
from .waiting.wait_costs import costs as wait_costs_so_far
from .waiting.wait_costs import refused as refusing_waits
from .waiting.wait_costs import report as wait_report
