"""Tools that show what the `xla` device did."""

from .._engine import diagnostics as _diagnostics
from .answers import CompilationRefused as CompilationRefused
from .answers import Cost as Cost
from .answers import Difference as Difference
from .answers import Explanation as Explanation
from .answers import HostProfile as HostProfile
from .answers import Part as Part
from .answers import TransferRefused as TransferRefused
from .answers import clear_history as clear_history
from .answers import compilations as compilations
from .answers import explain_recompiles as explain_recompiles
from .answers import host_profile as host_profile
from .answers import keep_history as keep_history
from .answers import no_recompile as no_recompile
from .answers import no_transfer as no_transfer
from .answers import report as report
from .answers import sync_costs as sync_costs
from .answers import sync_tax as sync_tax
from .fleet import Exporter as Exporter
from .fleet import Goodput as Goodput
from .fleet import account as account
from .fleet import dump_flight_recorder as dump_flight_recorder
from .fleet import goodput as goodput
from .fleet import send_opentelemetry as send_opentelemetry
from .fleet import serve_prometheus as serve_prometheus
from .fleet import write_json_lines as write_json_lines
from .fleet import write_tensorboard as write_tensorboard
from .plans import DeviceSpec as DeviceSpec
from .plans import NotComputed as NotComputed
from .plans import StepPlan as StepPlan
from .plans import Topology as Topology
from .plans import Traffic as Traffic
from .plans import collectives as collectives
from .plans import device_specs as device_specs
from .plans import explain_collectives as explain_collectives
from .plans import plan as plan
from .steps import NotFinite as NotFinite
from .steps import capture_step as capture_step
from .steps import check_values as check_values
from .steps import find_nan as find_nan
from .steps import replay_step as replay_step

# The tools that settings ask for, such as PT_XLA_DEBUG.
_diagnostics.start_logs()
