"""Diagnostics: why a program is slow, wrong or out of memory. A folder for each question; off, they cost nothing.

In: events, graphs and programs. Out: reports, profiles, files that replay a step.

Doors: fleet.exporters, fleet.goodput, logs.evaluation_ban,
logs.graph_files, logs.host_read_counts,
logs.metrics_report_file, logs.stack_places, logs.switches, profiles.operator_times, profiles.profiler,
profiles.torch_profiler, recompiles.causes, recompiles.differences, report.contents, report.history,
report.html_page, report.pending_graphs,
sharding.communication, sharding.sharding_grid, values.bad_value_checks, values.capture, values.cpu_recomputation,
values.first_nan, values.tensor_snapshots, waiting.host_time_profile, waiting.wait_costs.
"""
