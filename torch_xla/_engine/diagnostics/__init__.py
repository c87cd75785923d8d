"""Diagnostics: why it is slow, wrong or full. They listen to events of the other rooms; turned off, they cost nothing.

In: events, graphs and programs. Out: reports, profiles, files that replay a step. A room for each question.

Doors: doctor.diagnosis, doctor.surroundings, layouts.automatic, layouts.planned, layouts.search, logs.graph_files,
logs.permission, logs.reads, logs.report_file, logs.switches, plans.device_specs, plans.plan, profiles.operator_times,
profiles.profiler, recompiles.causes, recompiles.differences, report.contents, report.history, report.page,
report.pending_graphs, sharding.grid, sharding.traffic, values.capture, values.checking, values.nan,
values.recomputation, values.snapshots, waiting.costs, waiting.host_time.
"""
